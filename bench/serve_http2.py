"""The least of HTTP/2 that gRPC calls need: one connection, a stream for each call, messages noted as they come.

grpc.aio would take more of a processor for each message than the server does, and on two cores that is what would be
measured. Owns frames and windows (RFC 9113); headers are sent as literals, and of those that come only the status is
looked for. Not for anything but a load generator on one machine.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from dataclasses import dataclass, field

from bench.serve_answers import Record

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8
TABLE_SIZE, PUSH, INITIAL_WINDOW, FRAME_SIZE = 1, 2, 4, 5
MOST_WINDOW, USUAL_WINDOW = 2**31 - 1, 65_535
FRAME_HEAD, MESSAGE_HEAD = 9, 5
STATUS_OK = b"grpc-status\x010"
METHOD_POST, SCHEME_HTTP = b"\x83", b"\x86"  # of HPACK's static table
PATH, AUTHORITY, CONTENT_TYPE = b"\x04", b"\x01", b"\x0f\x10"  # names of it; values follow


class CallFailed(Exception):
    """A call that ended without its answer; the text has what the server said."""


@dataclass
class _Call:
    record: Record
    over: asyncio.Future[None]
    received: bytearray = field(default_factory=bytearray)
    status: bytes = b""


class Connection(asyncio.Protocol):
    """A connection to a gRPC server without TLS."""

    def __init__(self, authority: str) -> None:
        self._authority = authority.encode()
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._buffer = bytearray()
        self._window = USUAL_WINDOW  # bytes that the server takes now, of all calls
        self._waiting: deque[bytes] = deque()  # frames of data that have to wait for it
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = ""  # why no more calls are taken

    async def call(self, path: str, message: bytes, record: Record) -> None:
        """Send `message` as the only one and append those that come to `record`. Raises CallFailed."""
        if self.ended:
            raise CallFailed(self.ended)
        number, self._next = self._next, self._next + 2
        call = self._calls[number] = _Call(record, asyncio.get_running_loop().create_future())
        data = b"\0" + struct.pack(">I", len(message)) + message
        self._transport.write(_frame(HEADERS, END_HEADERS, number, self._headers(path)))
        self._waiting.append(_frame(DATA, END_STREAM, number, data))
        self._send_waiting()
        await call.over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take: no table for headers, and as much data as comes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        wanted = ((TABLE_SIZE, 0), (PUSH, 0), (INITIAL_WINDOW, MOST_WINDOW), (FRAME_SIZE, 2**24 - 1))
        settings = b"".join(struct.pack(">HI", *each) for each in wanted)
        more = struct.pack(">I", MOST_WINDOW - USUAL_WINDOW)
        transport.write(PREFACE + _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW, 0, 0, more))

    def connection_lost(self, reason: Exception | None) -> None:
        """Every call fails."""
        self._fail_all(f"the connection ended: {reason}")

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        now = time.perf_counter()
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD:
            length = int.from_bytes(buffer[at : at + 3], "big")
            after = at + FRAME_HEAD + length
            if after > end:
                break
            number = int.from_bytes(buffer[at + 5 : at + FRAME_HEAD], "big")
            self._take(buffer[at + 3], buffer[at + 4], number, bytes(buffer[at + FRAME_HEAD : after]), now)
            at = after
        del buffer[:at]

    def _take(self, kind: int, flags: int, number: int, payload: bytes, now: float) -> None:
        call = self._calls.get(number)
        if kind == DATA and call is not None:
            call.received += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
            _note_messages(call, now)
        elif kind == HEADERS and call is not None:
            call.status = payload
        elif kind == WINDOW and number == 0:
            self._window += int.from_bytes(payload, "big")
            self._send_waiting()
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._transport.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == SETTINGS and not self.settled.done():
                self.settled.set_result(None)
        elif kind == GOAWAY:
            self._fail_all(f"the server went away: {payload[8:]!r}")
        if call is not None and (kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM)):
            self._end(number, call)

    def _end(self, number: int, call: _Call) -> None:
        del self._calls[number]
        if call.over.done():
            return
        if STATUS_OK in call.status:
            call.over.set_result(None)
        else:
            call.over.set_exception(CallFailed(f"{call.status!r}"))

    def _fail_all(self, reason: str) -> None:
        self.ended = reason
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.over.done():
                call.over.set_exception(CallFailed(reason))

    def _send_waiting(self) -> None:
        while self._waiting and len(self._waiting[0]) - FRAME_HEAD <= self._window:
            frame = self._waiting.popleft()
            self._window -= len(frame) - FRAME_HEAD
            self._transport.write(frame)

    def _headers(self, path: str) -> bytes:
        values = ((PATH, path.encode()), (AUTHORITY, self._authority), (CONTENT_TYPE, b"application/grpc"))
        known = b"".join(name + bytes([len(value)]) + value for name, value in values)
        return METHOD_POST + SCHEME_HTTP + known + b"\0\x02te\x08trailers"


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, number) + payload


def _note_messages(call: _Call, now: float) -> None:
    received = call.received
    while len(received) >= MESSAGE_HEAD:
        end = MESSAGE_HEAD + int.from_bytes(received[1:MESSAGE_HEAD], "big")
        if len(received) < end:
            return
        call.record.messages.append((now, bytes(received[MESSAGE_HEAD:end])))
        del received[:end]
