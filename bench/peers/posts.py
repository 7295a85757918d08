"""The least of HTTP/1.1 that plain posts need: connections that are kept, one request at a time on each.

Owns the bytes of requests and answers. Not for anything but a load generator on one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

END = b"\r\n\r\n"
LENGTH, CHUNKED = b"content-length:", b"transfer-encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
SHOWN = 300


class PostFailed(Exception):
    """A post that was not answered with 200; the text has what the server said."""


class Connection(asyncio.Protocol):
    """A connection that takes the next request when the last is answered."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._over: asyncio.Future[bytes] | None = None

    async def post(self, request: bytes) -> bytes:
        """The body of the answer. Raises PostFailed."""
        self._over = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, reason: Exception | None) -> None:
        """The request fails."""
        if self._over is not None and not self._over.done():
            self._over.set_exception(PostFailed(f"the connection ended: {reason}"))

    def data_received(self, data: bytes) -> None:
        """Take the answer when it is whole."""
        self._received += data
        head = self._received.find(END)
        if head < 0 or self._over is None or self._over.done():
            return
        lines = bytes(self._received[:head]).lower().split(b"\r\n")
        body = _body(lines, bytes(self._received[head + len(END) :]))
        if body is None:
            return
        self._received.clear()
        if lines[0].split()[1] == b"200":
            self._over.set_result(body)
        else:
            self._over.set_exception(PostFailed(f"{lines[0].decode()}: {_last_line(body)}"))

    def close(self) -> None:
        """End it."""
        self._transport.close()


async def connected(address: str) -> Connection:
    """A connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


def post_request(address: str, path: str, body: bytes) -> bytes:
    """The bytes of a post of JSON."""
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + END + body


def _last_line(body: bytes) -> str:
    """Of a traceback, what it comes to."""
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:SHOWN] if lines else ""


def _body(lines: Sequence[bytes], received: bytes) -> bytes | None:
    """What follows the header's lines; None where there is more to come."""
    if CHUNKED in lines:
        return _joined(received) if received.endswith(LAST_CHUNK) else None
    length = next((int(line[len(LENGTH) :]) for line in lines if line.startswith(LENGTH)), 0)
    return received if len(received) >= length else None


def _joined(chunks: bytes) -> bytes:
    found = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        found += rest[:length]
        chunks = rest[length + 2 :]
    return found
