"""The transport over HTTP, blocking or for asyncio. Failures are raised as errors of hfx.

This module sets one deadline for a whole answer, as httpx's timeouts apply only to single reads.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import httpx

from hfx.client import errors, tensors
from hfx.client.address import Address, Tls, ssl_context
from hfx.client.retries import Deadline
from hfx.client.tensors import Array
from hfx.client.transport import PROBE_SECONDS, Request, Stream, Transport, completed
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata

Headers = Mapping[str, str]
OK = 200
NO_HEADERS: Headers = {}
JSON_HEADERS: Headers = {"content-type": tensors.JSON}
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
TIMEOUTS = (TimeoutError, httpx.TimeoutException)  # raised when a wait takes too long
# httpcore's names for the events after which a connection is open.
CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


def open_transport(address: Address, headers: Headers, tls: Tls | None, *, for_asyncio: bool) -> Transport:
    """Return a transport over blocking connections, or over connections of asyncio."""
    connection = _AsyncConnection if for_asyncio else _BlockingConnection
    return _HttpTransport(connection(address, headers, tls), address.url)


class _HttpTransport:
    def __init__(self, connection: _BlockingConnection | _AsyncConnection, url: str) -> None:
        self.url = url
        self._connection = connection

    async def infer(self, request: Request) -> dict[str, Array]:
        body, headers = tensors.encode_infer(request.id, request.inputs)
        answer, content = await self._fetch(_path(request.model, "/infer"), request.timeout, body, headers)
        return tensors.decode_infer(content, answer.headers)

    def stream(self, request: Request) -> Stream:
        """Return the stream of the answers to the request, which is sent with the first read."""
        return _HttpStream(self._connection, self.url, request)

    async def post(self, path: str, body: bytes, timeout: float) -> bytes:
        _, content = await self._fetch(path, timeout, body, JSON_HEADERS)
        return content

    async def is_live(self) -> bool:
        return await self._is("live")

    async def is_ready(self) -> bool:
        return await self._is("ready")

    async def models(self, timeout: float) -> list[str]:
        _, content = await self._fetch("/v2/models/stats", timeout)
        return tensors.decode_statistics(content)

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        _, content = await self._fetch(_path(model), timeout)
        metadata = tensors.decode_metadata(model, content)
        return await completed(metadata, self, timeout)

    async def parameter(self, model: str, name: str, timeout: float) -> str:
        _, config = await self._fetch(_path(model, "/config"), timeout)
        return tensors.decode_parameter(config, name)

    async def close(self) -> None:
        await self._connection.close()

    async def _is(self, state: str) -> bool:
        try:
            await self._fetch(f"/v2/health/{state}", PROBE_SECONDS)
        except ServerError as error:
            errors.check_authorized(error)
            return False
        return True

    async def _fetch(
        self, path: str, timeout: float, body: bytes | None = None, headers: Headers = NO_HEADERS
    ) -> tuple[httpx.Response, bytes]:
        """Return the answer and its body. Raises ServerError."""
        deadline = Deadline(timeout)
        with _translated(self.url, timeout):
            answer = await self._connection.open(path, body, headers, timeout)
            try:
                content = await self._connection.read(answer, deadline.left())
            finally:
                await self._connection.leave(answer)
        if answer.status_code != OK:
            raise errors.failure(str(answer.status_code), tensors.error_text(content), self.url)
        return answer, content


class _HttpStream:
    def __init__(self, connection: _BlockingConnection | _AsyncConnection, url: str, request: Request) -> None:
        self._connection = connection
        self._url = url
        self._request = request
        self._deadline = Deadline(request.timeout)
        self._answer: httpx.Response | None = None
        self._lines: Any = None

    async def read(self, timeout: float) -> dict[str, Array] | None:
        if self._deadline.passes_within(0):
            raise errors.timed_out(self._url, self._request.timeout, "")
        left = self._deadline.left()
        with _translated(self._url, self._request.timeout, idle=timeout if timeout < left else None):
            event = await self._event(min(timeout, left))
        if isinstance(event, str):
            raise errors.failure("", event, self._url)
        return event

    async def close(self) -> None:
        if self._answer is not None:
            await self._connection.leave(self._answer)

    def cancel(self) -> None:
        if self._answer is not None:
            self._connection.cancel(self._answer)

    async def _event(self, timeout: float) -> dict[str, Array] | str | None:
        """Return the tensors of the next event, the text of its error, or None at the end."""
        if self._answer is None:
            values = {name: tensors.plain_values(array) for name, array in self._request.inputs.items()}
            body = tensors.encode_generate(self._request.id, values)
            path = _path(self._request.model, "/generate_stream")
            self._answer = await self._connection.open(path, body, JSON_HEADERS, timeout)
            if self._answer.status_code != OK:
                content = await self._connection.read(self._answer, timeout)
                raise errors.failure(str(self._answer.status_code), tensors.error_text(content), self._url)
            self._lines = self._connection.lines(self._answer)
        while (line := await self._connection.next_line(self._lines, timeout)) is not None:
            event = tensors.decode_event(line, self._request.outputs)
            if event is not None:
                return event
        return None


class _BlockingConnection:
    """HTTP connections whose methods block the thread."""

    def __init__(self, address: Address, headers: Headers, tls: Tls | None) -> None:
        self._client = httpx.Client(**_options(address, headers, tls))
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()

    async def open(self, path: str, body: bytes | None, headers: Headers, timeout: float) -> httpx.Response:
        """Send a POST, or a GET if there is no body, and return the beginning of the answer.

        `timeout` applies to each single wait for the connection.
        """
        request = _request(self._client, path, body, headers, timeout)
        request.extensions["trace"] = self._trace
        return self._client.send(request, stream=True)

    async def read(self, answer: httpx.Response, timeout: float) -> bytes:
        end = time.monotonic() + timeout
        parts = []
        for part in answer.iter_bytes():
            if time.monotonic() > end:
                raise TimeoutError
            parts.append(part)
        return b"".join(parts)

    def lines(self, answer: httpx.Response) -> Iterator[str]:
        return answer.iter_lines()

    async def next_line(self, lines: Any, timeout: float) -> str | None:
        """Return the next line, or None at the end. The timeout that was given to `open` applies, not `timeout`."""
        return next(lines, None)

    async def leave(self, answer: httpx.Response) -> None:
        """Close the answer, and also its connection if the answer was not read to its end."""
        answer.close()

    def cancel(self, answer: httpx.Response) -> None:
        """Close the answer as `leave` does, from any thread or from the garbage collector.

        Another thread closes it, as the garbage collector must not wait.
        """
        _hang_up(answer.extensions["network_stream"])
        threading.Thread(target=answer.close, name="hfx-client-close", daemon=True).start()

    async def close(self) -> None:
        """Close all connections, and wake the threads that wait for one of them."""
        for connection in tuple(self._connections):
            _hang_up(connection)
        self._client.close()

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        if event in CONNECTED:
            self._connections.add(details["return_value"])


class _AsyncConnection:
    """Like _BlockingConnection, but the methods suspend tasks of asyncio. It belongs to one event loop."""

    def __init__(self, address: Address, headers: Headers, tls: Tls | None) -> None:
        self._client = httpx.AsyncClient(**_options(address, headers, tls))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closings: set[asyncio.Task[None]] = set()

    async def open(self, path: str, body: bytes | None, headers: Headers, timeout: float) -> httpx.Response:
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            return await self._client.send(_request(self._client, path, body, headers, timeout), stream=True)

    async def read(self, answer: httpx.Response, timeout: float) -> bytes:
        async with asyncio.timeout(timeout):
            return await answer.aread()

    def lines(self, answer: httpx.Response) -> AsyncIterator[str]:
        return answer.aiter_lines()

    async def next_line(self, lines: Any, timeout: float) -> str | None:
        async with asyncio.timeout(timeout):
            return await anext(lines, None)

    async def leave(self, answer: httpx.Response) -> None:
        await answer.aclose()

    def cancel(self, answer: httpx.Response) -> None:
        if self._loop is not None and not self._loop.is_closed():
            _hang_up(answer.extensions["network_stream"])
            self._loop.call_soon_threadsafe(self._leave_later, answer)

    async def close(self) -> None:
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
    """End a connection from any thread, so that even a thread that waits for its next byte returns at once."""
    open_socket = connection.get_extra_info("socket")
    if open_socket is not None:
        with suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)


def _options(address: Address, headers: Headers, tls: Tls | None) -> dict[str, Any]:
    """Return the arguments of httpx.Client and httpx.AsyncClient."""
    scheme = "https" if address.secure else "http"
    return {
        "base_url": f"{scheme}://{address.target}",
        "headers": dict(headers),
        "limits": LIMITS,
        # A proxy of the environment can't reach this machine's own ports.
        "trust_env": not address.is_loopback,
        "verify": ssl_context(tls or Tls()) if address.secure else True,
    }


def _path(model: str, verb: str = "") -> str:
    return f"/v2/models/{quote(model, safe='')}{verb}"


@contextmanager
def _translated(url: str, timeout: float, idle: float | None = None) -> Iterator[None]:
    """Raise the connection's exceptions as errors of hfx.

    `idle` is the stream's idle timeout where that ends before the deadline, and None where the deadline ends first.
    """
    try:
        yield
    except TIMEOUTS:
        raise (errors.timed_out(url, timeout, "") if idle is None else errors.idle(url, idle)) from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise errors.connection_failed(str(error) or type(error).__name__, url) from error
