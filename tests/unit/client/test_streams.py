"""Streamed texts over gRPC and HTTP, by the blocking and the asynchronous client, from servers in this process."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfx import errors
from hfx.client import AsyncClient, Client, Generation, Piece, TruncationWarning
from tests.rigs.clients.client_servers import Script, asked
from tests.rigs.machine.waiting import wait_until

FILES = Path("/proc/self/fd")  # the open files of this process


def test_pieces_come_in_order_and_the_result_is_their_sum(client: Client) -> None:
    with client.stream("writer", "write 3") as stream:
        pieces = [next(stream)]
        with pytest.raises(errors.UsageError, match="not ended"):
            _ = stream.result
        pieces += stream
    assert [piece.text for piece in pieces] == ["a0 ", "a1 ", "a2 "]
    assert pieces[-1] == Piece("a2 ", "length", 3, 3)
    assert stream.result == Generation("a0 a1 a2 ", "length", 3, 3)


def test_the_async_client_gets_the_pieces_and_the_result(url: str) -> None:
    async def read(client: AsyncClient) -> tuple[list[str], Generation]:
        async with client.stream("writer", "write 3") as stream:
            return [piece.text async for piece in stream], stream.result

    assert asked(url, read) == (["a0 ", "a1 ", "a2 "], Generation("a0 a1 a2 ", "length", 3, 3))


def test_leaving_early_ends_the_request_on_the_server(client: Client, script: Script) -> None:
    with client.stream("writer", "stall 2") as stream:
        for _ in stream:
            break
    assert script.wait_left()
    assert stream.result == Generation("a0 ", "cancelled", 3, 1)
    assert list(stream) == []


def test_cancelling_from_another_thread_ends_the_pieces(client: Client, script: Script) -> None:
    with client.stream("writer", "stall 1") as stream:
        first = next(stream)
        threading.Timer(0.2, stream.cancel).start()
        assert list(stream) == []
    assert stream.result == Generation(first.text, "cancelled", 3, 1)
    assert script.wait_left()


def test_collected_streams_leave_no_connection_open(client: Client, script: Script) -> None:
    def abandon() -> None:
        for _ in range(10):
            next(client.stream("writer", "stall 1"))
        gc.collect()
        assert all(script.wait_left() for _ in range(10))

    abandon()
    before = len(list(FILES.iterdir()))
    abandon()
    # Those of the server in this process close in their time.
    wait_until(lambda: len(list(FILES.iterdir())) <= before + 2, "the end of the connections", 5)


def test_another_task_may_cancel_a_stream(url: str, script: Script) -> None:
    async def read(client: AsyncClient) -> Generation:
        async with client.stream("writer", "stall 1") as stream:
            assert (await anext(stream)).text == "a0 "
            asyncio.get_running_loop().call_later(0.2, stream.cancel)
            assert [piece async for piece in stream] == []
        return stream.result

    assert asked(url, read) == Generation("a0 ", "cancelled", 3, 1)
    assert script.wait_left()


def test_a_task_that_leaves_early_or_is_cancelled_ends_the_request(url: str, script: Script) -> None:
    async def read(client: AsyncClient) -> None:
        async with client.stream("writer", "stall 1") as stream:
            async for _ in stream:
                pass

    async def leave(client: AsyncClient) -> None:
        async with client.stream("writer", "stall 1") as stream:
            await anext(stream)
        task = asyncio.create_task(read(client))
        await asyncio.to_thread(script.wait_asked, 2)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = client.stream("writer", "stall 1")
        await anext(stream)
        del stream
        gc.collect()
        await asyncio.sleep(0.1)
        assert await asyncio.to_thread(lambda: [script.wait_left() for _ in range(3)]) == [True] * 3

    asked(url, leave)


def test_a_silent_stream_ends_at_the_idle_timeout(url: str, script: Script) -> None:
    with Client(url, timeout=15, idle_timeout=0.3) as client, client.stream("writer", "stall 2") as stream:
        assert [next(stream).text, next(stream).text] == ["a0 ", "a1 "]
        began = time.monotonic()
        with pytest.raises(errors.RequestTimeout, match=r"Nothing new .* for 0\.3 s") as caught:
            next(stream)
    assert time.monotonic() - began < 5
    assert caught.value.model == "writer" and caught.value.request_id == script.ids[0]
    assert script.wait_left()
    assert stream.result.text == "a0 a1 "


def test_a_silent_stream_ends_at_the_idle_timeout_for_the_async_client(url: str, script: Script) -> None:
    async def read(client: AsyncClient) -> None:
        async with client.stream("writer", "stall 1") as stream:
            assert (await anext(stream)).text == "a0 "
            await anext(stream)

    with pytest.raises(errors.RequestTimeout, match="Nothing new"):
        asked(url, read, idle_timeout=0.3)
    assert script.wait_left()


def test_a_stream_must_be_done_within_its_timeout(client: Client, script: Script) -> None:
    began = time.monotonic()
    with pytest.raises(errors.RequestTimeout, match="did not answer within"):
        list(client.stream("writer", "stall 1", timeout=0.5))
    assert time.monotonic() - began < 5
    assert script.wait_left()


def test_an_error_before_the_first_piece_is_typed(client: Client) -> None:
    with pytest.raises(errors.RequestRefused, match="max_tokens is 0") as caught:
        list(client.stream("writer", "fail INVALID_ARGUMENT max_tokens is 0; allowed: more"))
    assert caught.value.model == "writer"


def test_a_failed_stream_neither_requests_a_status_nor_is_cancelled(client: Client, script: Script) -> None:
    """Either sometimes ends Triton before 26.04 (triton-inference-server/server #8708)."""
    for _ in range(10):
        with pytest.raises(errors.ServerBusy):
            list(client.stream("writer", "fail UNAVAILABLE [hfx:QUEUE_FULL] 8 requests wait", timeout=5))
    assert not any("triton_grpc_error" in headers for headers in script.headers)
    assert not script.left.acquire(timeout=0.3)


def test_a_stream_that_breaks_after_a_piece_is_not_retried(url: str, script: Script) -> None:
    def break_off(values: dict[str, object], *_: object) -> Iterator[dict[str, object]]:
        script.texts.append(str(values["text_input"]))
        yield script.piece("a0 ", "", 1)

    script.pieces = break_off  # type: ignore[method-assign]
    with Client(url, timeout=15, retries=5) as client:
        stream = client.stream("writer", "cut 1")
        assert next(stream).text == "a0 "
        with pytest.raises(errors.ServerError) as caught:
            next(stream)
    assert not isinstance(caught.value, errors.RequestRefused)
    assert len(script.texts) == 1


def test_an_unknown_model_is_named_as_requested(client: Client) -> None:
    with pytest.raises(errors.ModelUnknown, match="no model 'nobody'") as caught:
        next(client.stream("nobody", "write 2"))
    assert caught.value.fix == "It serves: writer."


def test_settings_are_sent_in_the_types_of_the_model(client: Client, script: Script) -> None:
    settings = {"max_tokens": 5, "seed": 2**64 - 1, "stop_words": ["a", "b"], "early_stopping": True}
    list(client.stream("writer", "write 1", **settings))  # type: ignore[arg-type]
    assert {name: script.values[0][name] for name in settings} == {**settings, "early_stopping": "true"}
    assert script.values[0]["stream"] is True
    assert 0 < script.values[0]["timeout_ms"] <= 15_000


def test_a_hundred_and_twenty_eight_streams_run_at_once(client: Client, script: Script) -> None:
    open_at_once = threading.Barrier(128)

    def read(_: int) -> str:
        with client.stream("writer", "stall 1") as stream:
            text = next(stream).text
            open_at_once.wait(30)
            return text

    with ThreadPoolExecutor(128) as pool:
        assert list(pool.map(read, range(128))) == ["a0 "] * 128


def test_closing_the_client_ends_its_streams(url: str, script: Script) -> None:
    client = Client(url, retries=0)
    stream = client.stream("writer", "stall 1")
    next(stream)
    threading.Timer(0.2, client.close).start()
    began = time.monotonic()
    with pytest.raises((errors.RequestCancelled, errors.ServerUnreachable)):
        next(stream)
    assert time.monotonic() - began < 5


def test_a_text_that_is_too_long_is_warned_of_once(client: Client, script: Script) -> None:
    script.truncated = 7
    stream = client.stream("writer", "write 3")
    with pytest.warns(TruncationWarning, match=r"'writer' reads: 7 tokens") as caught:
        list(stream)
    assert [warning.filename for warning in caught] == [__file__]
    assert stream.result.truncated_tokens == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert client.generate("writer", "write 1").truncated_tokens == 7
