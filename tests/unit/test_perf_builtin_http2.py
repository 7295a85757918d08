"""The plain connection of the generator: frames as servers may send them, in any portions, whole or hostile."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest

from hfx.client.address import Access, parse_address
from hfx.errors import ServerUnreachable
from hfx.perf.builtin import http2
from hfx.perf.builtin.doors import opened
from hfx.perf.builtin.headers import Unreadable, fields, request_block
from hfx.perf.builtin.http2 import CallFailed, Connection
from hfx.perf.builtin.records import Record
from tests.unit.perf_fake_server import fake_server

BLOCK = request_block("/a.B/C", "127.0.0.1:1", ())
PATIENCE = 10.0


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, number) + payload


def literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def message(content: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(content)) + content


SETTLED = frame(http2.SETTINGS, 0, 0)
HEAD = frame(http2.HEADERS, http2.END_HEADERS, 1, b"\x88")
GOOD = frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, literal("grpc-status", "0"))


def answered(
    answer: bytes, sent: bytes = b"hello", timeout: float = PATIENCE, portion: int = 1 << 20, settings: bytes = SETTLED
) -> tuple[Record, bytes, str]:
    """The record of one call, what the server was sent, and why the connection ended, if it did."""
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings)
        received.extend(await reader.readuntil(b"/a.B/C"))
        for at in range(0, len(answer), portion):
            writer.write(answer[at : at + portion])
            await writer.drain()
            await asyncio.sleep(0)
        while data := await reader.read(1 << 16):
            received.extend(data)
        writer.close()

    async def call() -> tuple[Record, str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        await asyncio.wait_for(connection.settled, PATIENCE)
        record = Record(0, 0.0)
        try:
            await connection.call(BLOCK, sent, record, timeout)
        except CallFailed as failed:
            record.error = (failed.status, failed.words)
        ended = connection.ended
        await asyncio.sleep(0.05)
        connection.close()
        server.close()
        await asyncio.sleep(0.05)
        return record, ended

    record, ended = asyncio.run(call())
    return record, bytes(received), ended


@pytest.mark.parametrize("portion", [1 << 20, 7, 1])
def test_messages_come_whole_in_whatever_portions(portion: int) -> None:
    data = message(b"one") + message(b"two") + message(b"")
    answer = HEAD + frame(http2.DATA, 0, 1, data[:6]) + frame(http2.DATA, 0, 1, data[6:]) + GOOD
    record, _, _ = answered(answer, portion=portion)
    assert record.messages == [b"one", b"two", b""] and record.error is None
    assert record.end == record.times[-1] > 0


def test_padding_priorities_and_continuations_are_taken_off() -> None:
    padded = frame(http2.DATA, http2.PADDED, 1, b"\3" + message(b"one") + b"\0\0\0")
    trailer = literal("grpc-status", "5") + literal("grpc-message", "no%20model%21")
    parts = frame(http2.HEADERS, http2.END_STREAM | http2.PRIORITY, 1, b"\0\0\0\0\7" + trailer[:9])
    record, _, _ = answered(HEAD + padded + parts + frame(http2.CONTINUATION, http2.END_HEADERS, 1, trailer[9:]))
    assert record.messages == [b"one"] and record.error == ("NOT_FOUND", "no model!")


def test_an_error_may_come_without_anything_before() -> None:
    trailer = b"\x88" + literal("grpc-status", "14") + literal("grpc-message", "busy")
    record, _, _ = answered(frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, trailer))
    assert record.error == ("UNAVAILABLE", "busy")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (frame(http2.RESET, 0, 1, b"\0\0\0\7"), "UNAVAILABLE"),
        (HEAD + frame(http2.HEADERS, 5, 1, b""), "UNKNOWN"),
        (HEAD + frame(http2.HEADERS, 5, 1, literal("grpc-status", "99")), "UNKNOWN"),
        (HEAD + frame(http2.HEADERS, 5, 1, b"\0\x8bxxxxxxxxxxx\1a"), "UNKNOWN"),  # a Huffman code
        (HEAD + frame(http2.HEADERS, 5, 1, b"\0\x7f"), "UNKNOWN"),  # cut off
        (frame(http2.GOAWAY, 0, 0, b"\0\0\0\0" + b"\0\0\0\0" + b"bye"), "UNAVAILABLE"),
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes, status: str) -> None:
    record, _, _ = answered(answer)
    assert record.error is not None and record.error[0] == status


def test_a_server_that_goes_away_may_still_answer() -> None:
    leaving = frame(http2.GOAWAY, 0, 0, struct.pack(">II", 1, 0) + b"max_age")
    record, _, ended = answered(leaving + HEAD + frame(http2.DATA, 0, 1, message(b"one")) + GOOD)
    assert record.messages == [b"one"] and record.error is None and "went away: max_age" in ended


def test_a_call_that_takes_too_long_is_given_up_here_and_there() -> None:
    record, received, _ = answered(HEAD, timeout=0.1)
    assert record.error == ("DEADLINE_EXCEEDED", "")
    assert received.endswith(frame(http2.RESET, 0, 1, http2.CANCEL))


def test_no_more_is_sent_than_the_server_takes() -> None:
    """A window of 10 bytes for each call, and frames of at most 4 MiB: then 5 bytes more, then all."""
    small = frame(http2.SETTINGS, 0, 0, struct.pack(">HI", http2.INITIAL_WINDOW, 10))
    more = frame(http2.WINDOW, 0, 1, struct.pack(">I", 5)) + frame(http2.WINDOW, 0, 1, struct.pack(">I", 1000))
    record, received, _ = answered(
        more + HEAD + frame(http2.DATA, 0, 1, message(b"x")) + GOOD, b"y" * 50, settings=small
    )
    whole = message(b"y" * 50)
    parts = [(0, whole[:10]), (0, whole[10:15]), (http2.END_STREAM, whole[15:])]
    assert received.endswith(b"".join(frame(http2.DATA, flags, 1, part) for flags, part in parts))
    assert record.messages == [b"x"]


def test_pings_and_settings_are_answered() -> None:
    ping = frame(http2.PING, 0, 0, b"12345678")
    _, received, _ = answered(ping + HEAD + frame(http2.DATA, 0, 1, message(b"x")) + GOOD)
    assert frame(http2.PING, http2.ACK, 0, b"12345678") in received
    assert frame(http2.SETTINGS, http2.ACK, 0) in received


def test_noise_ends_calls_and_never_the_generator() -> None:
    chance = random.Random(1)
    for _ in range(20):
        noise = HEAD + chance.randbytes(chance.randint(1, 400))
        record, _, _ = answered(noise, timeout=0.1)
        assert record.error is None or record.error[0] in http2.STATUSES


def test_headers_of_any_length_are_written_and_read() -> None:
    long = "x" * 40_000
    block = request_block("/a.B/C", "host:1", (("authorization", long), ("a", "")))
    found = fields(block)
    assert found[b"authorization"] == long.encode() and found[b"a"] == b"" and found[b"te"] == b"trailers"


def test_damaged_headers_are_unreadable_and_nothing_else() -> None:
    chance = random.Random(2)
    block = literal("grpc-status", "0") + literal("grpc-message", "fine")
    for _ in range(3000):
        damaged = bytearray(block[: chance.randint(0, len(block))] + chance.randbytes(chance.randint(0, 20)))
        if damaged:
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with suppress(Unreadable):
            fields(bytes(damaged))


def door_to(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object] | None, url: str = "") -> str:
    async def go() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0) if serve is not None else None  # type: ignore[arg-type]
        where = url or f"127.0.0.1:{server.sockets[0].getsockname()[1]}" if server is not None else url
        door = await opened(parse_address(where), Access(), stream=False, timeout=5)
        await door.close()
        return type(door).__name__

    return asyncio.run(go())


def test_a_usual_server_is_asked_on_a_plain_connection() -> None:
    with fake_server() as server:
        assert door_to(None, server.url) == "Plain"


def test_what_speaks_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfx.perf.builtin.plain.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("hfx.perf.builtin.library.CONNECT_SECONDS", 1.0)

    async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with pytest.raises(ServerUnreachable, match="can't be reached"):
        door_to(http1)
