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
from contextlib import suppress
from typing import Any

import httpx

from hfx.client.address import Address, Tls

Headers = Mapping[str, str]
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
TIMEOUTS = (TimeoutError, httpx.TimeoutException)  # what all waits here raise when the time is over
# httpcore's names for the moments when a connection is there.
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class BlockingConnection:
    """Connections whose waits block the thread."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._client = httpx.Client(**_options(address, headers, tls))
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    async def open(self, path: str, body: bytes | None, headers: Headers, timeout: float) -> httpx.Response:
        """The beginning of the answer to a POST, or to a GET without a body; each of its waits has this timeout."""
        request = _request(self._client, path, body, headers, timeout)
        request.extensions["trace"] = self._trace
        return self._client.send(request, stream=True)

    async def read(self, answer: httpx.Response, timeout: float) -> bytes:
        """The rest of the answer."""
        end = time.monotonic() + timeout
        parts = []
        for part in answer.iter_bytes():
            if time.monotonic() > end:
                raise TimeoutError
            parts.append(part)
        return b"".join(parts)

    def lines(self, answer: httpx.Response) -> Iterator[str]:
        """The lines of the answer, for `next_line`."""
        return answer.iter_lines()

    async def next_line(self, lines: Any, timeout: float) -> str | None:
        """The next line, None at the end; the timeout is that of `open`."""
        return next(lines, None)

    async def leave(self, answer: httpx.Response) -> None:
        """Close the answer: if it is not at its end, its connection too."""
        answer.close()

    def cancel(self, answer: httpx.Response) -> None:
        """As `leave`, from any thread and from the garbage collector, which must not wait: a thread closes it."""
        _hang_up(answer.extensions["network_stream"])
        threading.Thread(target=answer.close, name="hfx-client-close", daemon=True).start()

    async def close(self) -> None:
        """Close all connections; threads that wait at one are woken."""
        for connection in tuple(self._connections):
            _hang_up(connection)
        self._client.close()

    def _trace(self, event: str, found: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            self._connections.add(found["return_value"])


class AsyncConnection:
    """As BlockingConnection, but the waits are asyncio's; of one event loop."""

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._client = httpx.AsyncClient(**_options(address, headers, tls))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closings: set[asyncio.Task[None]] = set()

    async def open(self, path: str, body: bytes | None, headers: Headers, timeout: float) -> httpx.Response:
        """The beginning of the answer to a POST, or to a GET without a body."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            return await self._client.send(_request(self._client, path, body, headers, timeout), stream=True)

    async def read(self, answer: httpx.Response, timeout: float) -> bytes:
        """The rest of the answer."""
        async with asyncio.timeout(timeout):
            return await answer.aread()

    def lines(self, answer: httpx.Response) -> AsyncIterator[str]:
        """The lines of the answer, for `next_line`."""
        return answer.aiter_lines()

    async def next_line(self, lines: Any, timeout: float) -> str | None:
        """The next line, None at the end."""
        async with asyncio.timeout(timeout):
            return await anext(lines, None)

    async def leave(self, answer: httpx.Response) -> None:
        """Close the answer: if it is not at its end, its connection too."""
        await answer.aclose()

    def cancel(self, answer: httpx.Response) -> None:
        """As `leave`, from any thread and from the garbage collector."""
        if self._loop is not None and not self._loop.is_closed():
            _hang_up(answer.extensions["network_stream"])
            self._loop.call_soon_threadsafe(self._leave_later, answer)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _leave_later(self, answer: httpx.Response) -> None:
        task = asyncio.get_running_loop().create_task(answer.aclose())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


def _request(client: Any, path: str, body: bytes | None, headers: Headers, timeout: float) -> httpx.Request:
    method = "GET" if body is None else "POST"
    request: httpx.Request = client.build_request(method, path, content=body, headers=headers, timeout=timeout)
    return request


def _hang_up(connection: Any) -> None:
    """End a connection from any thread: a wait for its next byte, too, ends at once."""
    found = connection.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _options(address: Address, headers: Mapping[str, str], tls: Tls | None) -> dict[str, Any]:
    """The arguments of both of httpx's clients."""
    scheme = "https" if address.secure else "http"
    return {
        "base_url": f"{scheme}://{address.target}",
        "headers": dict(headers),
        "limits": LIMITS,
        # A proxy of the environment can't reach this machine's own ports.
        "trust_env": not address.is_loopback,
        "verify": _context(tls or Tls()) if address.secure else True,
    }


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key))
    return context
