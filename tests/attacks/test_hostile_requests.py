"""Requests that no client should send, at a real server: each is answered by itself, and its neighbours as always."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.client import Client
from hfx.errors import RequestRefused, UsageError
from hfx.triton import EmbeddedServer
from tests import zoo

pytestmark = pytest.mark.triton

MODEL = "sentiment-int8"
MEGABYTES = 64
Send = Callable[..., Any]


@pytest.fixture
def send(server: EmbeddedServer) -> Send:
    """Send raw tensors `name=array` to a model, past everything that the client library checks."""

    def infer(model: str, **tensors: np.ndarray) -> Any:
        inputs = []
        for name, array in tensors.items():
            kind = {"O": "BYTES", "i": "INT32", "b": "BOOL"}[array.dtype.kind]
            tensor = grpc.InferInput(name, list(array.shape), kind)
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        with grpc.InferenceServerClient(server.grpc_url) as client:
            return client.infer(model, inputs)

    return infer


def texts(*values: bytes) -> np.ndarray:
    return np.array([[value] for value in values], dtype=np.object_)


def refusal(send: Send, model: str, **tensors: np.ndarray) -> str:
    with pytest.raises(grpc.InferenceServerException) as caught:
        send(model, **tensors)
    return str(caught.value)


def test_bytes_that_are_not_utf8_are_refused_by_name(send: Send) -> None:
    assert "text_input is not UTF-8" in refusal(send, MODEL, text_input=texts(b"\xff\xfe\x00"))


def test_a_bad_request_does_not_disturb_its_batch(server: EmbeddedServer, send: Send) -> None:
    sentences = [example.text for example in zoo.heldout("sentiment", 48)]
    with Client(server.grpc_url) as client:
        expected = client.classify(MODEL, sentences)
    with ThreadPoolExecutor(16) as pool, Client(server.grpc_url) as client:
        bad = [pool.submit(refusal, send, MODEL, text_input=texts(b"\x80")) for _ in range(16)]
        good = [pool.submit(client.classify, MODEL, sentence) for sentence in sentences]
        assert all("not UTF-8" in future.result() for future in bad)
        assert [future.result() for future in good] == expected


@pytest.mark.parametrize("filling", [b"lovely ", b" ", b"\x00", "é".encode(), b"x"])
def test_a_huge_text_costs_little_and_kills_nothing(filling: bytes, server: EmbeddedServer, send: Send) -> None:
    huge = texts((filling * (MEGABYTES * 1024 * 1024 // len(filling)))[: MEGABYTES * 1024 * 1024])
    pids = server.stubs()
    began = time.monotonic()
    send(MODEL, text_input=huge)
    assert time.monotonic() - began < 20  # moving 64 MB through the server; without the cap the tokenizer takes minutes
    assert server.stubs() == pids
    assert not server.fault()


def test_wrong_shapes_are_refused(send: Send) -> None:
    two = np.array([[b"a", b"b"]], dtype=np.object_)
    assert "shape" in refusal(send, MODEL, text_input=two)


@pytest.mark.parametrize("top_k", [0, -1, -(2**31)])
def test_top_k_below_one_is_refused_by_name(top_k: int, send: Send) -> None:
    values = np.array([[top_k]], np.int32)
    assert "top_k must be at least 1" in refusal(send, MODEL, text_input=texts(b"fine"), top_k=values)


def test_top_k_beyond_the_labels_gives_all(send: Send) -> None:
    result = send(MODEL, text_input=texts(b"fine"), top_k=np.array([[2**31 - 1]], np.int32))
    assert result.as_numpy("label").shape == (1, 3)


def test_a_missing_input_is_refused_though_others_are_optional(send: Send) -> None:
    assert refusal(send, MODEL, top_k=np.array([[1]], np.int32))


@pytest.mark.parametrize("labels", [[b""], [b"food", b""], [b"\xff"], [b"   "]])
def test_labels_that_are_no_labels_are_refused(labels: list[bytes], send: Send) -> None:
    candidates = np.array([labels], dtype=np.object_)
    assert "candidate_labels" in refusal(send, "nli-int8", text_input=texts(b"A goal!"), candidate_labels=candidates)


def test_no_labels_at_all_are_refused(server: EmbeddedServer) -> None:
    with Client(server.grpc_url) as client, pytest.raises(UsageError, match="label"):
        client.zero_shot("nli-int8", "A goal!", [])


def test_an_empty_question_is_answered_or_refused_but_harms_nobody(send: Send, server: EmbeddedServer) -> None:
    for question, context in ((b"", b"Ada came."), (b"Who?", b""), (b"", b"")):
        try:
            send("answers-int8", question=texts(question), context=texts(context))
        except grpc.InferenceServerException as error:
            assert "question" in str(error) or "context" in str(error)  # noqa: PT017
    assert not server.fault()


def test_special_tokens_in_a_text_change_nobody_elses_answer(server: EmbeddedServer) -> None:
    """BART pools at the last end token: texts that spell "</s>" must not shift the rows of their batch."""
    plain = "A goal in the last minute!"
    with Client(server.grpc_url) as client:
        alone = client.zero_shot("nli-fp32", plain, ["sports", "food"])
        batch = client.zero_shot("nli-fp32", [plain, "a </s> b </s> c", "</s>" * 9, plain], ["sports", "food"])
    assert batch[0] == alone == batch[3]


def test_random_bytes_never_break_the_server(send: Send, server: EmbeddedServer) -> None:
    for length in (1, 7, 64, 1000, 65536):
        with pytest.raises((grpc.InferenceServerException, RequestRefused)):
            send(MODEL, text_input=texts(b"\xc3" + os.urandom(length) + b"\xff"))
    assert not server.fault()
