"""Lists of texts: order, the bounded window, and single failures, over a transport in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from hfx.client import AsyncClient, Classification, Client, GenerationSettings, ModelMetadata, Request, TensorMetadata
from hfx.client.calls import stream
from hfx.client.tensors import Array
from hfx.errors import RequestRefused, UsageError

ECHO = ModelMetadata(
    "echo",
    (TensorMetadata("text_input", "BYTES", (1,)),),
    tuple(TensorMetadata(n, d, (-1, 3)) for n, d in (("label", "BYTES"), ("score", "FP32"), ("embedding", "FP32"))),
)


class Echo:
    """A transport whose model labels a text by itself and refuses `no`; it counts the requests in flight."""

    url = "memory:1"

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sent: list[str] = []
        self.under_way = 0
        self.most = 0
        self._sleep = sleep
        self._lock = threading.Lock()

    async def infer(self, request: Request) -> dict[str, Array]:
        text = request.inputs["text_input"].item().decode()
        with self._lock:
            self.sent.append(text)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            await self._sleep(0.002)
        finally:
            with self._lock:
                self.under_way -= 1
        if text == "no":
            raise RequestRefused("I don't like it.", "Say yes.")
        return {
            "label": np.array([[text.encode()]], np.object_),
            "score": np.array([[0.5]], np.float32),
            "embedding": np.array([[len(text), 0, 1]], np.float32),
            "truncated_tokens": np.array([[0]], np.int32),
        }

    async def metadata(self, model: str, timeout: float) -> ModelMetadata:
        return ECHO


async def blocking_sleep(seconds: float) -> None:
    time.sleep(seconds)


def echo() -> tuple[Echo, Client]:
    transport = Echo(blocking_sleep)
    return transport, Client(transport=transport, max_in_flight=4)  # type: ignore[arg-type]


def async_echo() -> tuple[Echo, AsyncClient]:
    transport = Echo(asyncio.sleep)
    return transport, AsyncClient(transport=transport, max_in_flight=4)  # type: ignore[arg-type]


def classified(kind: str, texts: Iterable[str]) -> tuple[Echo, Callable[[], list[Classification]]]:
    """Return a transport, and a call of the client of this `kind` that classifies the texts over it."""
    if kind == "blocking":
        transport, client = echo()
        return transport, lambda: client.classify("echo", texts)
    transport, waiting = async_echo()
    return transport, lambda: asyncio.run(waiting.classify("echo", texts))


clients = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@clients
def test_a_list_gives_a_list_in_order_and_max_in_flight_are_sent_at_a_time(kind: str) -> None:
    texts = [str(number) for number in range(50)]
    transport, call = classified(kind, texts)
    assert [result.label for result in call()] == texts
    assert transport.most == 4


def test_a_single_value_stands_for_a_list_of_one() -> None:
    _, client = echo()
    assert client.infer("echo", {"text_input": "two words"})["label"].item() == b"two words"


def test_a_stream_may_be_asked_for_by_the_name_of_its_engine() -> None:
    plain = GenerationSettings()
    assert stream("stories_stream", "a", plain).model == stream("stories", "a", plain).model == "stories_stream"


def test_an_endless_iterable_is_read_as_far_as_its_results_are_by_tasks() -> None:
    transport, client = async_echo()

    async def read() -> list[str]:
        outcomes = client.infer_each("echo", ({"text_input": [str(number)]} for number in count()))
        found = [(await anext(outcomes))["label"].item() for _ in range(6)]  # type: ignore[index]
        await outcomes.aclose()
        return found

    assert asyncio.run(read()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert len(transport.sent) <= 9 and transport.under_way == 0


@clients
def test_one_bad_text_raises_its_error_with_its_index_and_stops_the_rest(kind: str) -> None:
    transport, call = classified(kind, ["a", "b", "no", *["d"] * 100])
    with pytest.raises(RequestRefused, match="At index 2: I don't like it") as caught:
        call()
    assert caught.value.fix == "Say yes."
    time.sleep(0.05)
    assert transport.under_way == 0
    assert len(transport.sent) <= 10


def test_errors_take_the_places_of_results_where_asked_for() -> None:
    outcomes = list(echo()[1].each(partial(echo()[1].classify, "echo"), ["a", "no", "\ud800", "d"]))
    names = [type(outcome).__name__ for outcome in outcomes]
    assert names == ["Classification", "RequestRefused", "UsageError", "Classification"]


@clients
def test_an_iterable_that_raises_leaves_no_request_in_flight(kind: str) -> None:
    def texts() -> Iterator[str]:
        yield from ["a", "b"]
        raise ZeroDivisionError

    transport, call = classified(kind, texts())
    with pytest.raises(ZeroDivisionError):
        call()
    time.sleep(0.05)
    assert transport.under_way == 0


def test_a_text_that_is_no_unicode_is_refused_before_it_is_sent() -> None:
    transport, client = echo()
    with pytest.raises(UsageError, match="character 1 is half of a surrogate pair"):
        client.classify("echo", "a\ud800")
    assert transport.sent == []


def test_embeddings_of_a_list_are_one_matrix() -> None:
    client = echo()[1]
    vectors = client.embed("echo", ["a", "bbb"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1, 0, 1], [3, 0, 1]]
    assert client.embed("echo", []).shape == (0, 3)


@pytest.mark.parametrize("limits", [{"max_in_flight": 0}, {"max_in_flight": -1}, *(
    {name: seconds} for seconds in (0, -1, float("nan"), float("inf"), None, "1", True)
    for name in ("timeout", "idle_timeout")
)], ids=str)  # fmt: skip
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Client(**limits)


def test_lists_of_questions_and_contexts_must_be_equally_long() -> None:
    with pytest.raises(UsageError, match="2 questions but 1 contexts"):
        echo()[1].answer("echo", ["a", "b"], ["c"])


@pytest.mark.parametrize("texts", [None, 3, b"bytes", ["a", 3]])
def test_a_value_that_is_neither_text_nor_list_is_refused(texts: object) -> None:
    with pytest.raises(UsageError, match="of type"):
        echo()[1].classify("echo", texts)  # type: ignore[call-overload]
