"""An HTTP connection pool, in the two ways of waiting: a request out, a body or its lines in.

httpx's own timeouts are those of single waits; here a whole answer has a deadline. This file must not know what bodies
mean.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from hfx.client.address import Access, Address, Tls

# httpcore's names for the moments when a connection is there.
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


@dataclass(frozen=True)
class Sent:
    """A request to be sent: its path, and what it carries. Without a body it is a GET."""

    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def method(self) -> str:
        """GET or POST."""
        return "GET" if self.body is None else "POST"


@dataclass(frozen=True)
class Received:
    """An answer."""

    status: int
    headers: Any
    body: bytes


class Late(Exception):
    """The answer was not complete in time."""


class Lines(Protocol):
    """The lines of an answer."""

    async def open(self, timeout: float) -> Received | None:
        """Send the request; an answer that is an error comes whole, None is a good one's beginning."""

    async def next(self, timeout: float) -> str | None:
        """The next line, None at the end; raises Late."""

    async def close(self) -> None:
        """Let go of the connection."""

    def cancel(self) -> None:
        """As `close`, from any place."""


class Connection(Protocol):
    """Connections to a server."""

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""

    async def close(self) -> None:
        """Close all connections."""


class BlockingConnection:
    """Connections whose waits block the thread."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.Client(**_options(address, access))
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""
        end = time.monotonic() + timeout
        try:
            answer = self.send(sent, timeout)
            try:
                return Received(answer.status_code, answer.headers, b"".join(_until(end, answer.iter_bytes())))
            finally:
                answer.close()
        except httpx.TimeoutException:
            raise Late from None

    def send(self, sent: Sent, timeout: float) -> httpx.Response:
        """The answer's beginning."""
        request = _request(self._client, sent, timeout)
        request.extensions["trace"] = self._trace
        return self._client.send(request, stream=True)

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""
        return _BlockingLines(self, sent)

    async def close(self) -> None:
        """Close all connections; threads that wait at one are woken."""
        for connection in tuple(self._connections):
            _hang_up(connection)
        self._client.close()

    def _trace(self, event: str, found: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            self._connections.add(found["return_value"])


class _BlockingLines:
    def __init__(self, connection: BlockingConnection, sent: Sent) -> None:
        self._connection = connection
        self._sent = sent
        self._answer: httpx.Response | None = None
        self._lines: Iterator[str] = iter(())

    async def open(self, timeout: float) -> Received | None:
        try:
            self._answer = answer = self._connection.send(self._sent, timeout)
            if answer.is_success:
                self._lines = answer.iter_lines()
                return None
            return Received(answer.status_code, answer.headers, answer.read())
        except httpx.TimeoutException:
            raise Late from None

    async def next(self, timeout: float) -> str | None:
        try:
            return next(self._lines, None)
        except httpx.TimeoutException:
            raise Late from None

    async def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    def cancel(self) -> None:
        if self._answer is not None:
            _hang_up(self._answer.extensions["network_stream"])
            # Elsewhere: this may be the garbage collector, in the midst of what it would wait for.
            threading.Thread(target=self._answer.close, name="hfx-client-close", daemon=True).start()


class AsyncConnection:
    """Connections whose waits are asyncio's; of one event loop."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.AsyncClient(**_options(address, access))
        self._closings: set[asyncio.Task[None]] = set()

    async def fetch(self, sent: Sent, timeout: float) -> Received:
        """The whole answer; raises Late."""
        try:
            async with asyncio.timeout(timeout):
                answer = await self._client.send(_request(self._client, sent, timeout))
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None
        return Received(answer.status_code, answer.headers, answer.content)

    def lines(self, sent: Sent) -> Lines:
        """The answer line by line."""
        return _AsyncLines(self, sent)

    async def send(self, sent: Sent, timeout: float) -> httpx.Response:
        """The answer's beginning."""
        return await self._client.send(_request(self._client, sent, timeout), stream=True)

    def close_later(self, answer: httpx.Response) -> None:
        """Close ANSWER by a task of its own."""
        task = asyncio.get_running_loop().create_task(answer.aclose())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class _AsyncLines:
    def __init__(self, connection: AsyncConnection, sent: Sent) -> None:
        self._connection = connection
        self._sent = sent
        self._loop = asyncio.get_running_loop()
        self._answer: httpx.Response | None = None
        self._lines: AsyncIterator[str] | None = None

    async def open(self, timeout: float) -> Received | None:
        try:
            async with asyncio.timeout(timeout):
                self._answer = answer = await self._connection.send(self._sent, timeout)
                if not answer.is_success:
                    return Received(answer.status_code, answer.headers, await answer.aread())
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None
        self._lines = answer.aiter_lines()
        return None

    async def next(self, timeout: float) -> str | None:
        assert self._lines is not None
        try:
            async with asyncio.timeout(timeout):
                return await anext(self._lines, None)
        except (TimeoutError, httpx.TimeoutException):
            raise Late from None

    async def close(self) -> None:
        if self._answer is not None:
            await self._answer.aclose()

    def cancel(self) -> None:
        if self._answer is not None and not self._loop.is_closed():
            _hang_up(self._answer.extensions["network_stream"])
            self._loop.call_soon_threadsafe(self._connection.close_later, self._answer)


def _request(client: Any, sent: Sent, timeout: float) -> httpx.Request:
    request: httpx.Request = client.build_request(
        sent.method, sent.path, content=sent.body, headers=sent.headers, timeout=timeout
    )
    return request


def _until(end: float, parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        if time.monotonic() > end:
            raise Late
        yield part


def _hang_up(connection: Any) -> None:
    """End a connection from any thread: a wait for its next byte, too, ends at once."""
    found = connection.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _options(address: Address, access: Access) -> dict[str, Any]:
    scheme = "https" if address.secure else "http"
    return {
        "base_url": f"{scheme}://{address.target}",
        "headers": dict(access.headers),
        "limits": LIMITS,
        # A proxy of the environment can't reach this machine's own ports.
        "trust_env": not address.is_loopback,
        "verify": _context(access.tls or Tls()) if address.secure else True,
    }


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context
