"""HTTP connections that block or are asyncio's: a whole answer within a deadline, or its lines one by one.

httpx's own timeouts are those of single waits.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from hfx.client.address import Access, Address, Tls

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
TIMEOUTS = (TimeoutError, httpx.TimeoutException)  # what all waits here raise when the time is over
# httpcore's names for the moments when a connection is there.
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


@dataclass(frozen=True)
class HttpRequest:
    """A request to be sent: its path, and what it carries. Without a body it is a GET."""

    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def build(self, client: httpx.Client | httpx.AsyncClient, timeout: float) -> httpx.Request:
        """The request that `client` sends; each of its waits may take `timeout` seconds."""
        method = "GET" if self.body is None else "POST"
        return client.build_request(method, self.path, content=self.body, headers=self.headers, timeout=timeout)


@dataclass(frozen=True)
class HttpResponse:
    """An answer."""

    status: int
    headers: Any
    body: bytes


class BlockingConnection:
    """Connections whose waits block the thread."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.Client(**_options(address, access))
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    async def fetch(self, request: HttpRequest, timeout: float) -> HttpResponse:
        """The whole answer."""
        end = time.monotonic() + timeout
        with closing(self.send(request, timeout)) as answer:
            return HttpResponse(answer.status_code, answer.headers, b"".join(_until(end, answer.iter_bytes())))

    def lines(self, request: HttpRequest) -> BlockingLines:
        """The answer line by line."""
        return BlockingLines(self, request)

    def send(self, request: HttpRequest, timeout: float) -> httpx.Response:
        """The beginning of the answer."""
        sent = request.build(self._client, timeout)
        sent.extensions["trace"] = self._trace
        return self._client.send(sent, stream=True)

    async def close(self) -> None:
        """Close all connections; threads that wait at one are woken."""
        for connection in tuple(self._connections):
            _hang_up(connection)
        self._client.close()

    def _trace(self, event: str, found: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            self._connections.add(found["return_value"])


class BlockingLines:
    """The lines of one answer."""

    def __init__(self, connection: BlockingConnection, request: HttpRequest) -> None:
        self._connection = connection
        self._request = request
        self._answer: httpx.Response | None = None
        self._lines: Iterator[str] = iter(())

    async def open(self, timeout: float) -> HttpResponse | None:
        """Send the request; the whole answer if it is an error, None otherwise."""
        self._answer = answer = self._connection.send(self._request, timeout)
        if not answer.is_success:
            return HttpResponse(answer.status_code, answer.headers, answer.read())
        self._lines = answer.iter_lines()
        return None

    async def next(self, timeout: float) -> str | None:
        """The next line, None at the end; the timeout is that of `open`."""
        return next(self._lines, None)

    async def close(self) -> None:
        """Close the answer's connection."""
        if self._answer is not None:
            self._answer.close()

    def cancel(self) -> None:
        """As `close`, from any thread and from the garbage collector, which must not wait: a thread closes it."""
        if self._answer is not None:
            _hang_up(self._answer.extensions["network_stream"])
            threading.Thread(target=self._answer.close, name="hfx-client-close", daemon=True).start()


class AsyncConnection:
    """Connections whose waits are asyncio's; of one event loop."""

    def __init__(self, address: Address, access: Access) -> None:
        self._client = httpx.AsyncClient(**_options(address, access))
        self._closings: set[asyncio.Task[None]] = set()

    async def fetch(self, request: HttpRequest, timeout: float) -> HttpResponse:
        """The whole answer."""
        async with asyncio.timeout(timeout):
            answer = await self._client.send(request.build(self._client, timeout))
        return HttpResponse(answer.status_code, answer.headers, answer.content)

    def lines(self, request: HttpRequest) -> AsyncLines:
        """The answer line by line."""
        return AsyncLines(self, request)

    async def send(self, request: HttpRequest, timeout: float) -> httpx.Response:
        """The beginning of the answer."""
        return await self._client.send(request.build(self._client, timeout), stream=True)

    def close_later(self, answer: httpx.Response) -> None:
        """Close `answer` in a task of its own."""
        task = asyncio.get_running_loop().create_task(answer.aclose())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class AsyncLines:
    """As BlockingLines."""

    def __init__(self, connection: AsyncConnection, request: HttpRequest) -> None:
        self._connection = connection
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._answer: httpx.Response | None = None
        self._lines: AsyncIterator[str] | None = None

    async def open(self, timeout: float) -> HttpResponse | None:
        """Send the request; the whole answer if it is an error, None otherwise."""
        async with asyncio.timeout(timeout):
            self._answer = answer = await self._connection.send(self._request, timeout)
            if not answer.is_success:
                return HttpResponse(answer.status_code, answer.headers, await answer.aread())
        self._lines = answer.aiter_lines()
        return None

    async def next(self, timeout: float) -> str | None:
        """The next line, None at the end."""
        assert self._lines is not None
        async with asyncio.timeout(timeout):
            return await anext(self._lines, None)

    async def close(self) -> None:
        """Close the answer's connection."""
        if self._answer is not None:
            await self._answer.aclose()

    def cancel(self) -> None:
        """As `close`, from any thread and from the garbage collector."""
        if self._answer is not None and not self._loop.is_closed():
            _hang_up(self._answer.extensions["network_stream"])
            self._loop.call_soon_threadsafe(self._connection.close_later, self._answer)


def _hang_up(connection: Any) -> None:
    """End a connection from any thread: a wait for its next byte, too, ends at once."""
    found = connection.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _options(address: Address, access: Access) -> dict[str, Any]:
    """The arguments of both of httpx's clients."""
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


def _until(end: float, parts: Iterator[bytes]) -> Iterator[bytes]:
    for part in parts:
        if time.monotonic() > end:
            raise TimeoutError
        yield part
