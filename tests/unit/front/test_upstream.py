"""Connections to Triton: which are reused, and requests on a reused one that the server has closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from hfx.front import full_models
from hfx.front.full_models import FullModels, KnownAnswer
from hfx.front.upstream import Upstream, UpstreamLost
from hfx.python_backends.errors import IS_OVERLOADED, QUEUE_FULL, QueueFull, with_reason

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


def run(serve: Serve, ask: Callable[[Upstream], Awaitable[None]]) -> int:
    """Return the number of connections that `ask` made to a server; `serve` gets the number of each connection."""

    async def main() -> int:
        connections = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await serve(reader, writer, connections)
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            async with asyncio.timeout(60):
                await ask(Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        return connections

    return asyncio.run(main())


async def request(upstream: Upstream, path: bytes = b"/") -> bytes:
    async with upstream.sent(b"POST", path, b"body") as connection:
        content = b""
        while not connection.is_read:
            content += await connection.read()
        return content


async def take(reader: asyncio.StreamReader) -> bytes:
    """Return the path of the next request, or an empty path when its connection ends."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    await reader.readexactly(4)
    return head.split()[1]


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    while await take(reader):
        writer.write(ANSWER)


def test_the_connection_of_a_client_that_leaves_is_used_by_no_other_request() -> None:
    async def ask(upstream: Upstream) -> None:
        for _ in range(20):
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(upstream.sent(b"POST", b"/", b"body"))
                await connection.read()
                assert connection.complete
                connection.abort()  # as its client disconnects before the answer is passed on
            assert upstream.free == []
            assert await request(upstream) == b"ok"

    assert run(answer_all, ask) > 20


def test_a_request_on_a_kept_connection_that_was_closed_is_sent_on_a_new_one() -> None:
    paths: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        paths.append(await take(reader))
        writer.write(ANSWER)
        if number == 1:  # and takes the next request without an answer
            paths.append(await take(reader))

    async def ask(upstream: Upstream) -> None:
        assert await request(upstream, b"/first") == b"ok"
        assert await request(upstream, b"/second") == b"ok"

    assert run(serve, ask) == 2
    assert paths == [b"/first", b"/second", b"/second"]


FULL = with_reason(QUEUE_FULL, QueueFull()).encode()


@pytest.mark.parametrize(
    ("refusal", "forwarded"),
    [
        (b'{"error":"%b"}' % FULL, 2),
        (b'data: {"error":"%b"}\n\n' % FULL, 2),
        (b'{"error":"text is \'%b\'"}' % FULL, 4),  # a caller's own words
        (b'{"error":"[hfx:QUEUE_FULL] %b"}' % IS_OVERLOADED.encode(), 4),  # of an encoder, which may take a smaller one
    ],
)
def test_a_full_generator_is_sent_no_more_until_a_request_ends(
    refusal: bytes, forwarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_models, "RECENT_SECONDS", 60.0)
    requests, ends = list[bytes](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while path := await take(reader):
            requests.append(path)
            if number == 1 and not ends.is_set():
                await ends.wait()
                writer.write(ANSWER)
            elif ends.is_set() or path == b"/other":
                writer.write(ANSWER)
            else:
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal))

    async def ask(upstream: Upstream) -> None:
        first = asyncio.create_task(request(upstream))
        while not requests:
            await asyncio.sleep(0.001)
        assert [await request(upstream) for _ in range(3)] == [refusal] * 3
        assert len(requests) == forwarded
        assert await request(upstream, b"/other") == b"ok"
        ends.set()
        assert await first == b"ok"
        assert await request(upstream) == b"ok"

    run(serve, ask)


def test_a_refusal_is_forgotten_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = KnownAnswer(400, [], FULL)
    for seconds, is_known in ((60.0, True), (-1.0, False)):
        monkeypatch.setattr(full_models, "RECENT_SECONDS", seconds)
        models = FullModels()
        models.begin(b"/")
        models.begin(b"/")
        models.end(b"/", answer)
        assert (models.answer(b"/") is answer) is is_known


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_a_request_whose_connection_ends_is_sent_once(begun: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if begun:
            await take(reader)
            writer.write(ANSWER)
        await take(reader)
        writer.write(begun)

    async def ask(upstream: Upstream) -> None:
        if begun:
            assert await request(upstream) == b"ok"
        with pytest.raises(UpstreamLost):
            await request(upstream)

    assert run(serve, ask) == 1


def test_a_request_that_cannot_be_sent_again_is_reported_as_lost(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        closing = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await take(reader)
            writer.write(ANSWER)
            await take(reader)
            closing.set()
            await asyncio.sleep(0.1)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await request(upstream) == b"ok"
        asking = asyncio.create_task(request(upstream, b"/v2/models/m/generate"))
        await closing.wait()
        server.close()
        with pytest.raises(UpstreamLost):
            await asking

    asyncio.run(main())
    line = "hfx: Triton ended before it answered POST /v2/models/m/generate (4 bytes).\n"
    assert capfd.readouterr().err.count(line) == 1
