"""Requests to Triton's HTTP port over persistent connections. Answers can be read while they arrive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import httptools

from hfx.front.full_models import FULL, FullModels, KnownAnswer
from hfx.front.guard import Disconnected
from hfx.front.lost_requests import LostRequests
from hfx.front.refusals import RETRY, Header, Refusal, json_head

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

STOPPED = "Triton does not take requests at the moment; it is being started again. Try again later."
LOST = "Triton ended before it answered; it is being started again."

MOST_FREE_CONNECTIONS = 256  # between requests
POLL_SECONDS = 0.01  # while a server reads a long request slowly
SILENT_SECONDS = 0.1
BUFFERED_BYTES = 1 << 20  # of an answer; reading from Triton pauses until the client has taken them
COPIED_BYTES = 1 << 20
# Headers that concern only one connection (RFC 9110, 7.6.1). uvicorn frames the answer again.
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-connection"}


ModelInUse = Callable[[bytes, "ClientConnection | None"], AbstractAsyncContextManager[bytes | None]]


class UpstreamLost(Exception):
    """Triton's connection broke before the answer was complete."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to Triton for one request at a time, with the `status`, `headers` and body of its answer."""

    def __init__(self, pool: Upstream) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_reused = False
        self._begin(())

    def _begin(self, request: Sequence[bytes]) -> None:
        self._unanswered = request  # until the first byte of its answer arrives
        self.status = 0
        self.headers: list[Header] = []
        self.complete = False
        self._is_kept = False
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self.refusal: KnownAnswer | None = None  # if the model's queue is full
        self.copied: bytearray | None = None  # a copy of the body, up to the piece that exceeds COPIED_BYTES

    @property
    def is_read(self) -> bool:
        """Whether `read` has returned all of a complete answer. An answer may be complete before it is read."""
        return self.complete and not self._pieces

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed the connection."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes) -> None:
        """Write a request to the connection to Triton."""
        self._begin((head + body,) if len(body) < BUFFERED_BYTES else (head, body))
        self._write()

    def _write(self) -> None:
        assert self._transport is not None
        for part in self._unanswered:
            self._transport.write(part)

    async def write(self, piece: bytes) -> None:
        """Write a piece of a request, after the server has read most of the earlier pieces. Raises UpstreamLost."""
        while self._transport is not None and self._transport.get_write_buffer_size() > BUFFERED_BYTES:
            await asyncio.sleep(POLL_SECONDS)
        if self._transport is None:
            raise UpstreamLost
        self._transport.write(piece)

    async def read(self) -> bytes:
        """Return the part of the body that has arrived since the last call.

        Wait until a part has arrived or the answer is complete. Raises UpstreamLost.
        """
        while not self._pieces and not self.complete:
            if self._transport is None:
                await self._send_again()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        content = b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return content

    async def _send_again(self) -> None:
        """Send the request again, because the server may have closed the connection before the request arrived.

        This is done only if the connection was used before, and ended without a byte of an answer. Raises UpstreamLost
        for other connections, and if the server does not listen.
        """
        if not (self._is_reused and self._unanswered):
            raise UpstreamLost
        self._is_reused = False
        self._parser = httptools.HttpResponseParser(self)
        try:
            await self._pool.open(self)
        except OSError:
            raise UpstreamLost from None
        self._write()

    def release(self) -> None:
        """Keep the connection for another request if its answer is complete, or close it so that Triton cancels."""
        if self.is_open and self.complete and self._is_kept and len(self._pool.free) < self._pool.most_free:
            self._is_reused = True
            self._pool.free.append(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection, so that Triton cancels the request; `read` raises UpstreamLost."""
        self._unanswered = ()
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the transport. asyncio calls this once."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the open request. asyncio calls this once."""
        self._transport = None
        if self in self._pool.free:
            self._pool.free.remove(self)
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer."""
        self._unanswered = ()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Reject an answer without a request, which must not become the answer to the next request."""
        if self.complete:
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, unless it concerns only this connection."""
        if (name := name.lower()) not in HOP_BY_HOP:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Store the status of the answer."""
        self.status = self._parser.get_status_code()
        self._is_kept = self._parser.should_keep_alive()  # unknown again once the answer is complete

    def on_body(self, body: bytes) -> None:
        """Store a piece for `read`. Pause reading if too much is buffered."""
        self._pieces.append(body)
        if body in FULL:
            self.refusal = KnownAnswer(self.status, self.headers, body)
        if self.copied is not None and len(self.copied) <= COPIED_BYTES:
            self.copied += body
        self._buffered += len(body)
        if self._buffered > BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note that the answer is complete."""
        self.complete = True


class Upstream:
    """Triton's HTTP at `url`, with connections that stay open between requests.

    `model_in_use` returns a context for a request to a path. The request's model stays loaded in that context, or the
    context yields the answer for a model that is not loaded.
    """

    def __init__(self, url: str) -> None:
        self.model_in_use: ModelInUse = lambda path, client: nullcontext()  # all models stay loaded
        parts = urlsplit(url)
        self._host, self._port, self._socket = parts.hostname or "", parts.port or 0, ""
        if parts.scheme == "unix":
            self._socket = short_path(Path(unquote(parts.netloc)))
        self._lost, self._full = LostRequests(), FullModels()
        self.free: list[UpstreamConnection] = []
        self.most_free = MOST_FREE_CONNECTIONS

    async def connect(self) -> UpstreamConnection:
        """Return a connection that no other request uses. Raises OSError if Triton does not listen."""
        if self.free:
            return self.free.pop()
        connection = UpstreamConnection(self)
        await self.open(connection)
        return connection

    async def open(self, connection: UpstreamConnection) -> None:
        """Connect `connection` to Triton. Raises OSError if Triton does not listen."""
        loop = asyncio.get_running_loop()
        if self._socket:
            await loop.create_unix_connection(lambda: connection, self._socket)
        else:
            await loop.create_connection(lambda: connection, self._host, self._port)

    @asynccontextmanager
    async def sent(
        self,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        headers: Sequence[Header] = (),
        client: ClientConnection | None = None,
    ) -> AsyncIterator[UpstreamConnection]:
        """Send a request of `client` (None: of the front itself), and yield its connection.

        Raises Refusal (503) if Triton does not listen or does not load the model, and Disconnected if `client` has
        disconnected.
        """
        async with self.model_in_use(path, client) as stored:
            known = self._full.answer(path) if stored is None else KnownAnswer(200, json_head(stored), stored)
            if known is not None:
                answered = UpstreamConnection(self)
                answered.status, answered.headers, answered.complete = known.status, list(known.headers), True
                answered.on_body(known.body)
                yield answered
                return
            try:
                connection = await self.connect()
            except OSError:
                raise Refusal(503, STOPPED, [RETRY]) from None
            self._full.begin(path)
            try:
                if client is not None and client.has_left:
                    raise Disconnected
                connection.send(request_head(method, path, len(body), headers), body)
                yield connection
            except UpstreamLost:
                if client is None or not client.has_left:
                    self._lost.add(method, path, headers, body)
                raise
            finally:
                self._full.end(path, connection.refusal)
                connection.release()

    async def drop_silent(self) -> None:
        """Close the free connections on which Triton does not answer now. Requests use new connections meanwhile."""
        kept, self.free = self.free, []
        await asyncio.sleep(SILENT_SECONDS)
        for connection in kept:
            if connection.is_open:
                connection.send(request_head(b"GET", b"/v2/health/live", 0, ()), b"")
        await asyncio.sleep(SILENT_SECONDS)
        for connection in kept:
            connection.release()

    def close(self) -> None:
        """Close the free connections now, and the others when their answers are complete."""
        self.most_free = 0
        for connection in list(self.free):
            connection.abort()


def short_path(path: Path) -> str:
    """Return another path of a socket, through a descriptor of its folder: the kernel allows a path only 107 bytes."""
    return f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}"


def request_head(method: bytes, path: bytes, length: int, headers: Sequence[Header]) -> bytes:
    """Return the head of a request to Triton with a body of `length` bytes."""
    lines = [b"%b %b HTTP/1.1\r\nhost: triton\r\ncontent-length: %d\r\n" % (method, path, length)]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join([*lines, b"\r\n"])
