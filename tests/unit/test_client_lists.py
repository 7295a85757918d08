"""Lists through the client: order, the bounded window, one bad text among many; over a transport in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hfx.client import Classification, Client, ModelMetadata, TensorMetadata
from hfx.client.wire import Array, Tensors
from hfx.errors import HfxError, RequestRefused, UsageError


class Echo:
    """A transport whose model answers a text with itself as label; `no` is refused. It counts what is on its way."""

    url = "memory:1"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.under_way = 0
        self.most = 0
        self.cancelled = 0

    def submit(self, model: str, inputs: Tensors, timeout: float) -> EchoPending:
        text = inputs["text_input"].item().decode()
        self.sent.append(text)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return EchoPending(self, text)

    def is_ready(self) -> bool:
        return True

    def models(self, timeout: float) -> list[str]:
        return ["echo"]

    def metadata(self, model: str, timeout: float) -> ModelMetadata:
        return ModelMetadata(model, (), (TensorMetadata("embedding", "FP32", (-1, 3)),))

    def close(self) -> None:
        pass


class EchoPending:
    def __init__(self, transport: Echo, text: str) -> None:
        self.transport = transport
        self.text = text

    def result(self) -> dict[str, Array]:
        self.transport.under_way -= 1
        if self.text == "no":
            raise RequestRefused("I don't like it.", "Say yes.")
        return {
            "label": np.array([[self.text.encode()]], np.object_),
            "score": np.array([[0.5]], np.float32),
            "embedding": np.array([[len(self.text), 0, 1]], np.float32),
            "truncated_tokens": np.array([[2]], np.int32),
        }

    def cancel(self) -> None:
        self.transport.cancelled += 1


def echo(window: int = 4) -> tuple[Echo, Client]:
    transport = Echo()
    return transport, Client(transport=transport, window=window)


def label(outcome: Classification | HfxError) -> str:
    assert isinstance(outcome, Classification)
    return outcome.label


def test_a_text_gives_one_result() -> None:
    result = echo()[1].classify("echo", "a")
    assert (result.label, result.score, result.truncated_tokens) == ("a", 0.5, 2)


def test_a_list_gives_a_list_in_order() -> None:
    texts = [str(number) for number in range(50)]
    assert [result.label for result in echo()[1].classify("echo", texts)] == texts


def test_no_texts_give_no_results() -> None:
    assert echo()[1].classify("echo", []) == []


def test_no_more_than_the_window_is_on_its_way() -> None:
    transport, client = echo(window=4)
    client.classify("echo", (str(number) for number in range(50)))
    assert transport.most == 4


def test_an_endless_iterable_is_read_as_far_as_its_results_are() -> None:
    transport, client = echo(window=4)

    def endless() -> Iterator[str]:
        while True:
            yield "x"

    outcomes = client.classify_each("echo", endless())
    assert label(next(outcomes)) == "x"
    assert len(transport.sent) == 4


def test_stopping_to_read_cancels_what_is_on_its_way() -> None:
    transport, client = echo(window=4)
    outcomes = client.classify_each("echo", ["a"] * 9)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert transport.cancelled == 3


def test_one_bad_text_raises_its_own_error_with_its_index() -> None:
    with pytest.raises(RequestRefused, match="At index 2: I don't like it") as caught:
        echo()[1].classify("echo", ["a", "b", "no", "d"])
    assert caught.value.fix == "Say yes."


def test_after_a_bad_text_nothing_more_is_sent_and_nothing_is_left_on_its_way() -> None:
    transport, client = echo(window=4)
    with pytest.raises(RequestRefused):
        client.classify("echo", ["no", *["a"] * 100])
    assert transport.under_way == 0
    assert len(transport.sent) <= 5


def test_the_first_of_several_errors_is_the_one_that_is_raised() -> None:
    with pytest.raises(RequestRefused, match="At index 1:"):
        echo()[1].classify("echo", ["a", "no", "no"])


def test_each_gives_an_error_in_the_place_of_its_text() -> None:
    outcomes = list(echo()[1].classify_each("echo", ["a", "no", "\ud800", "d"]))
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Classification",
        "RequestRefused",
        "UsageError",
        "Classification",
    ]


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


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_sends_nothing_is_refused(window: int) -> None:
    with pytest.raises(UsageError):
        Client(window=window)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_can_not_be_kept_is_refused(timeout: float) -> None:
    with pytest.raises(UsageError):
        Client(timeout=timeout)


@pytest.mark.parametrize("url", ["http://localhost:8001", "localhost", ":8001", "localhost:0", "localhost:port", ""])
def test_an_address_that_is_not_host_and_port_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Client(url)


def test_lists_of_questions_and_contexts_must_be_equally_long() -> None:
    with pytest.raises(UsageError, match="2 questions but 1 contexts"):
        echo()[1].answer("echo", ["a", "b"], ["c"])
