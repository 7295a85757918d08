"""gRPC over a plain connection with little work a message: frames and windows of HTTP/2 (RFC 9113), bytes in and out.

grpc.aio takes about 200 us of a core for a call and 50 us for a message of a stream, this a third to a fifth of it: on
few cores that would be taken from the server, and so be measured as its. A stream of HTTP/2 for each call; what comes
is noted with its time. Not a client for anything but a load generator.
"""

from __future__ import annotations

import asyncio
import struct
import time
from urllib.parse import unquote

from hfx.perf.builtin.headers import Unreadable, fields
from hfx.perf.builtin.records import Record

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK, PADDED, PRIORITY = 1, 4, 1, 8, 32
TABLE_SIZE, PUSH, MOST_STREAMS, INITIAL_WINDOW, FRAME_SIZE = 1, 2, 3, 4, 5
MOST_WINDOW, USUAL_WINDOW, USUAL_FRAME = 2**31 - 1, 65_535, 16_384
REFILL = 1 << 30  # bytes received before the server is allowed more
FRAME_HEAD, MESSAGE_HEAD = 9, 5
CANCEL = struct.pack(">I", 8)
FEWEST_STREAMS = 1 << 16  # that a server must take at a time; for fewer, calls would queue here
STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class CallFailed(Exception):
    """A call that ended without its answer: gRPC's status, and words."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class _Call:
    __slots__ = ("block", "ends", "last", "over", "received", "record", "waiting", "window")

    def __init__(self, record: Record, over: asyncio.Future[None], window: int) -> None:
        self.record = record
        self.over = over
        self.received = bytearray()
        self.block = bytearray()  # headers so far; at the end those of the trailer
        self.last = self.ends = False  # whether these headers are the last, and whether all of them are there
        self.window = window  # bytes that the server takes of this call
        self.waiting = b""  # what it has not taken yet


class Connection(asyncio.Protocol):
    """A connection to a gRPC server without TLS. `ended` says why no more calls are taken; "" while they are."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        self.ended = ""
        self.fits = True  # whether the server takes as many calls at a time as may come
        self._loop = loop
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._buffer = bytearray()
        self._window, self._call_window, self._frame = USUAL_WINDOW, USUAL_WINDOW, USUAL_FRAME
        self._received = 0

    async def call(self, block: bytes, message: bytes, record: Record, timeout: float) -> None:
        """Send MESSAGE under the headers BLOCK, note what comes in RECORD. Raises CallFailed."""
        if self.ended:
            raise CallFailed("UNAVAILABLE", self.ended)
        number, self._next = self._next, self._next + 2
        call = self._calls[number] = _Call(record, self._loop.create_future(), self._call_window)
        data = b"\0" + struct.pack(">I", len(message)) + message
        head = _frame(HEADERS, END_HEADERS, number, block)
        late = self._loop.call_later(timeout, self._time_out, number)
        if len(data) <= min(self._window, call.window, self._frame):  # as nearly always
            self._window -= len(data)
            self._transport.write(head + _frame(DATA, END_STREAM, number, data))
        else:
            self._transport.write(head)
            call.waiting = data
            self._push(number, call)
        try:
            await call.over
        finally:
            late.cancel()
            if self._calls.pop(number, None) is not None:  # left before its end
                self._transport.write(_frame(RESET, 0, number, CANCEL))
            if self.ended and not self._calls:
                self._transport.close()

    def close(self) -> None:
        """End it."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take: no table for headers, and as much data as comes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        wanted = ((TABLE_SIZE, 0), (PUSH, 0), (INITIAL_WINDOW, MOST_WINDOW), (FRAME_SIZE, 2**24 - 1))
        settings = b"".join(struct.pack(">HI", *each) for each in wanted)
        transport.write(PREFACE + _frame(SETTINGS, 0, 0, settings) + _more(MOST_WINDOW - USUAL_WINDOW))

    def connection_lost(self, reason: Exception | None) -> None:
        """Every call fails."""
        self._fail_all(f"the connection ended: {reason or 'closed by the server'}")
        if not self.settled.done():
            self.settled.set_exception(CallFailed("UNAVAILABLE", self.ended))
            self.settled.exception()  # whoever asks is told; nobody has to

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        now = time.perf_counter()
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= FRAME_HEAD:
            after = at + FRAME_HEAD + int.from_bytes(buffer[at : at + 3], "big")
            if after > end:
                break
            number = int.from_bytes(buffer[at + 5 : at + FRAME_HEAD], "big")
            try:
                self._take(buffer[at + 3], buffer[at + 4], number, bytes(buffer[at + FRAME_HEAD : after]), now)
            except (struct.error, IndexError):
                self._fail_all("it sends what is not HTTP/2")
                self._transport.close()
            at = after
        del buffer[:at]

    def _take(self, kind: int, flags: int, number: int, payload: bytes, now: float) -> None:
        if kind == DATA:
            self._refill(len(payload))
        call = self._calls.get(number) if number else None
        if call is None:
            self._take_other(kind, flags, number, payload)
        elif kind == DATA:
            call.received += _unpadded(payload) if flags & PADDED else payload
            _note_messages(call, now)
        elif kind in (HEADERS, CONTINUATION):
            self._take_headers(kind, flags, call, payload)
        elif kind == WINDOW:
            call.window += int.from_bytes(payload, "big")
            self._push(number, call)
        elif kind == RESET:
            self._end(number, call, now, "UNAVAILABLE", f"the server reset the call ({int.from_bytes(payload, 'big')})")
        if call is not None and ((kind == DATA and flags & END_STREAM) or call.ends):
            self._end(number, call, now, *_status(call.block))

    def _take_headers(self, kind: int, flags: int, call: _Call, payload: bytes) -> None:
        if kind == HEADERS:
            call.block.clear()
            call.last = bool(flags & END_STREAM)
            payload = _unpadded(payload) if flags & PADDED else payload
            payload = payload[5:] if flags & PRIORITY else payload
        call.block += payload
        call.ends = call.last and bool(flags & END_HEADERS)

    def _take_other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """What belongs to the connection, or to a call that has been left."""
        if kind == WINDOW and number == 0:
            self._window += int.from_bytes(payload, "big")
            for each, call in list(self._calls.items()):
                self._push(each, call)
        elif kind == SETTINGS and not flags & ACK:
            self._settle(payload)
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._go_away(int.from_bytes(payload[:4], "big"), payload[8:].decode(errors="replace"))

    def _go_away(self, last: int, words: str) -> None:
        """No more calls; those up to the last that the server took go on."""
        self.ended = f"the server went away{': ' if words else ''}{words}"
        for number, call in list(self._calls.items()):
            if number > last:
                self._end(number, call, time.perf_counter(), "UNAVAILABLE", self.ended)
        if not self._calls:
            self._transport.close()

    def _settle(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == INITIAL_WINDOW:
                for call in self._calls.values():
                    call.window += value - self._call_window
                self._call_window = value
            elif name == FRAME_SIZE:
                self._frame = value
            elif name == MOST_STREAMS:
                self.fits = value >= FEWEST_STREAMS
        self._transport.write(_frame(SETTINGS, ACK, 0, b""))
        if not self.settled.done():
            self.settled.set_result(None)

    def _push(self, number: int, call: _Call) -> None:
        """Send what waits, as far as the server takes it."""
        while call.waiting and (size := min(len(call.waiting), self._window, call.window, self._frame)) > 0:
            part, call.waiting = call.waiting[:size], call.waiting[size:]
            self._window -= size
            call.window -= size
            self._transport.write(_frame(DATA, 0 if call.waiting else END_STREAM, number, part))

    def _refill(self, size: int) -> None:
        self._received += size
        if self._received >= REFILL:
            self._transport.write(_more(self._received))
            self._received = 0

    def _time_out(self, number: int) -> None:
        call = self._calls.get(number)
        if call is not None and not call.over.done():
            call.over.set_exception(CallFailed("DEADLINE_EXCEEDED", ""))

    def _end(self, number: int, call: _Call, now: float, status: str, words: str) -> None:
        del self._calls[number]
        call.record.end = call.record.times[-1] if call.record.times else now
        if call.over.done():
            return
        if status == "OK":
            call.over.set_result(None)
        else:
            call.over.set_exception(CallFailed(status, words))

    def _fail_all(self, reason: str) -> None:
        self.ended = self.ended or reason
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.over.done():
                call.over.set_exception(CallFailed("UNAVAILABLE", reason))


def _status(block: bytearray) -> tuple[str, str]:
    try:
        found = fields(bytes(block))
    except Unreadable as error:
        return "UNKNOWN", f"the trailer can't be read: {error}"
    number = found.get(b"grpc-status", b"")
    status = STATUSES[int(number)] if number.isdigit() and int(number) < len(STATUSES) else "UNKNOWN"
    return status, unquote(found.get(b"grpc-message", b"").decode(errors="replace"))


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, number) + payload


def _more(size: int) -> bytes:
    return _frame(WINDOW, 0, 0, struct.pack(">I", size))


def _unpadded(payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]]


def _note_messages(call: _Call, now: float) -> None:
    received, record = call.received, call.record
    while len(received) >= MESSAGE_HEAD:
        end = MESSAGE_HEAD + int.from_bytes(received[1:MESSAGE_HEAD], "big")
        if len(received) < end:
            return
        record.times.append(now)
        record.messages.append(bytes(received[MESSAGE_HEAD:end]))
        del received[:end]
