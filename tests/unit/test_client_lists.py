"""Lists through the client: order, the bounded window, one bad text among many; over a transport in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np
import pytest

from hfx.client import AsyncClient, Classification, Client, ModelMetadata, Request, TensorMetadata
from hfx.client.tensors import Array
from hfx.errors import HfxError, RequestRefused, UsageError

ECHO = ModelMetadata(
    "echo",
    (TensorMetadata("text_input", "BYTES", (1,)),),
    tuple(TensorMetadata(n, d, (-1, 3)) for n, d in (("label", "BYTES"), ("score", "FP32"), ("embedding", "FP32"))),
)


class Echo:
    """A transport whose model answers a text with itself as label; `no` is refused. It counts what is on its way."""

    url = "memory:1"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.under_way = 0
        self.most = 0
        self.lock = threading.Lock()

    async def infer(self, request: Request) -> dict[str, Array]:
        text = request.inputs["text_input"].item().decode()
        with self.lock:
            self.sent.append(text)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            await self.work()
        finally:
            with self.lock:
                self.under_way -= 1
        if text == "no":
            raise RequestRefused("I don't like it.", "Say yes.")
        return {
            "label": np.array([[text.encode()]], np.object_),
            "score": np.array([[0.5]], np.float32),
            "embedding": np.array([[len(text), 0, 1]], np.float32),
            "truncated_tokens": np.array([[0]], np.int32),
        }

    async def work(self) -> None:
        time.sleep(0.002)

    def stream(self, request: Request) -> None:  # type: ignore[override]
        raise AssertionError("nobody streams here")

    async def is_live(self) -> bool:
        return True

    async def is_ready(self) -> bool:
        return True

    async def models(self, timeout: float) -> list[str]:
        return ["echo"]

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        return ECHO

    async def close(self) -> None:
        pass


class AsyncEcho(Echo):
    """The same, waiting by asyncio."""

    async def work(self) -> None:
        await asyncio.sleep(0.002)


def echo(most: int = 4) -> tuple[Echo, Client]:
    transport = Echo()
    return transport, Client(transport=transport, max_in_flight=most)  # type: ignore[arg-type]


def async_echo(most: int = 4) -> tuple[Echo, AsyncClient]:
    transport = AsyncEcho()
    return transport, AsyncClient(transport=transport, max_in_flight=most)  # type: ignore[arg-type]


def label(outcome: Classification | HfxError) -> str:
    assert isinstance(outcome, Classification)
    return outcome.label


def endless() -> Iterator[dict[str, list[str]]]:
    return ({"text_input": [str(number)]} for number in count())


def test_a_text_gives_one_result() -> None:
    result = echo()[1].classify("echo", "a")
    assert (result.label, result.score, result.truncated_tokens) == ("a", 0.5, 0)


def test_a_list_gives_a_list_in_order_and_max_in_flight_are_sent_at_a_time() -> None:
    transport, client = echo(most=4)
    texts = [str(number) for number in range(50)]
    assert [result.label for result in client.classify("echo", texts)] == texts
    assert transport.most == 4


def test_no_more_than_max_in_flight_tasks_are_on_their_way() -> None:
    transport, client = async_echo(most=4)
    texts = [str(number) for number in range(50)]
    results = asyncio.run(client.classify("echo", texts))
    assert [result.label for result in results] == texts
    assert transport.most == 4


def test_a_slow_text_does_not_keep_the_others_from_being_sent() -> None:
    transport, client = echo(most=2)
    held = threading.Event()
    transport.work = hold_first(held, transport)  # type: ignore[method-assign]
    results = client.classify("echo", (text if text != "9" else held.set() or text for text in map(str, range(10))))
    assert [result.label for result in results] == [str(number) for number in range(10)]


def hold_first(held: threading.Event, transport: Echo):  # type: ignore[no-untyped-def]
    async def work() -> None:
        if len(transport.sent) == 1:
            assert held.wait(10)

    return work


def test_an_endless_iterable_is_read_as_far_as_its_results_are_by_tasks() -> None:
    transport, client = async_echo(most=4)

    async def read() -> list[bytes]:
        found: list[bytes] = []
        outcomes = client.infer_each("echo", endless())
        async for outcome in outcomes:
            assert not isinstance(outcome, HfxError)
            found.append(outcome["label"].item())
            if len(found) == 6:
                await outcomes.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(read()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert len(transport.sent) <= 9 and transport.under_way == 0


def test_one_bad_text_raises_its_own_error_with_its_index() -> None:
    with pytest.raises(RequestRefused, match="At index 2: I don't like it") as caught:
        echo()[1].classify("echo", ["a", "b", "no", "d"])
    assert caught.value.fix == "Say yes."


def test_after_a_bad_text_nothing_more_is_sent_and_nothing_is_left_on_its_way() -> None:
    transport, client = echo(most=4)
    with pytest.raises(RequestRefused):
        client.classify("echo", ["no", *["a"] * 100])
    time.sleep(0.05)
    assert transport.under_way == 0
    assert len(transport.sent) <= 8


def test_errors_take_the_places_of_results_where_asked_for() -> None:
    client = echo()[1]
    outcomes = list(client.each(partial(client.classify, "echo"), ["a", "no", "\ud800", "d"]))
    names = [type(outcome).__name__ for outcome in outcomes]
    assert names == ["Classification", "RequestRefused", "UsageError", "Classification"]
    assert label(outcomes[3]) == "d"


def test_one_bad_text_of_many_ends_the_tasks_of_the_others() -> None:
    transport, client = async_echo(most=4)
    with pytest.raises(RequestRefused, match="At index 0: I don't like it"):
        asyncio.run(client.classify("echo", ["no", *["a"] * 100]))
    assert transport.under_way == 0
    assert len(transport.sent) <= 8


def test_an_iterable_that_fails_leaves_nothing_on_its_way() -> None:
    transport, client = async_echo(most=4)

    def texts() -> Iterator[str]:
        yield from ["a", "b"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(client.classify("echo", texts()))
    assert transport.under_way == 0


def test_a_text_that_is_no_unicode_is_refused_before_it_is_sent() -> None:
    transport, client = echo()
    with pytest.raises(UsageError, match="surrogate pair at character 1"):
        client.classify("echo", "a\ud800")
    assert transport.sent == []


def test_embeddings_of_a_list_are_one_matrix() -> None:
    vectors = echo()[1].embed("echo", ["a", "bbb"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1, 0, 1], [3, 0, 1]]


def test_embeddings_of_no_texts_keep_their_width() -> None:
    assert echo()[1].embed("echo", []).shape == (0, 3)


@pytest.mark.parametrize("most", [0, -1])
def test_a_number_in_flight_that_sends_nothing_is_refused(most: int) -> None:
    with pytest.raises(UsageError):
        Client(max_in_flight=most)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), None, "1", True])
def test_a_timeout_that_can_not_be_kept_is_refused(timeout: float) -> None:
    with pytest.raises(UsageError):
        Client(timeout=timeout)
    with pytest.raises(UsageError):
        Client(idle_timeout=timeout)


def test_lists_of_questions_and_contexts_must_be_equally_long() -> None:
    with pytest.raises(UsageError, match="2 questions but 1 contexts"):
        echo()[1].answer("echo", ["a", "b"], ["c"])


@pytest.mark.parametrize("texts", [None, 3, b"bytes", ["a", 3]])
def test_what_is_neither_a_text_nor_many_is_refused(texts: object) -> None:
    with pytest.raises(UsageError, match="of type"):
        echo()[1].classify("echo", texts)  # type: ignore[call-overload]
