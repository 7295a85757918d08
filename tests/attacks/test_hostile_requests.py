"""Hostile requests to a real server: each gets its own answer, and other requests get theirs as always.

The unit tests of the models' own code (tests/unit) show which values are refused and in which words.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.client import Client
from hfx.python_backends.inputs import LONGEST_TEXT
from hfx.triton import EmbeddedServer
from tests import zoo

pytestmark = pytest.mark.triton

MODEL = "sentiment-int8"
Send = Callable[[str, bytes], None]


@pytest.fixture
def send(server: EmbeddedServer) -> Send:
    """Send a text to a model without the checks of the client library."""

    def infer(model: str, text: bytes) -> None:
        tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text]], np.object_))
        with grpc.InferenceServerClient(server.grpc_url) as client:
            client.infer(model, [tensor])

    return infer


def refusal(send: Send, text: bytes) -> str:
    with pytest.raises(grpc.InferenceServerException) as caught:
        send(MODEL, text)
    return str(caught.value)


def test_a_bad_request_does_not_disturb_its_batch(server: EmbeddedServer, send: Send) -> None:
    sentences = [example.text for example in zoo.heldout("sentiment", 48)]
    with Client(server.grpc_url) as client:
        expected = client.classify(MODEL, sentences)
    with ThreadPoolExecutor(16) as pool, Client(server.grpc_url) as client:
        bad = [pool.submit(refusal, send, b"\x80") for _ in range(16)]
        good = [pool.submit(client.classify, MODEL, sentence) for sentence in sentences]
        assert all("text_input is not UTF-8" in future.result() for future in bad)
        assert [future.result() for future in good] == expected


@pytest.mark.parametrize("filling", [b"lovely ", b"\x00", b"x"])
def test_a_huge_text_costs_little_and_kills_nothing(filling: bytes, server: EmbeddedServer, send: Send) -> None:
    pids = server.stubs()
    began = time.monotonic()
    send(MODEL, filling * (LONGEST_TEXT // len(filling)))
    assert time.monotonic() - began < 20  # moving 16 MB through the server; of all of it, the tokenizer takes a minute
    assert "above the limit" in refusal(send, b"x" * (LONGEST_TEXT + 1))
    assert server.stubs() == pids
    assert not server.fault()


@pytest.mark.parametrize("width", [0, 513, 4096])
def test_a_width_that_the_model_does_not_take_fails_no_innocent_text(width: int, server: EmbeddedServer) -> None:
    model = "entities-fp32"
    sentences = [example.text for example in zoo.heldout("sentiment", 12)]
    with Client(server.grpc_url) as client, grpc.InferenceServerClient(server.grpc_url) as raw:
        expected = client.label_tokens(model, sentences)
        for sentence, answer in zip(sentences, expected, strict=True):
            with pytest.raises(grpc.InferenceServerException) as caught:
                raw.infer(f"{model}_net", token_tensors(width))
            assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
            assert client.label_tokens(model, sentence) == answer


def token_tensors(width: int) -> list[grpc.InferInput]:
    tensors = [grpc.InferInput(name, [1, width], "INT32") for name in ("input_ids", "attention_mask", "token_type_ids")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, width), np.int32))
    return tensors


def test_random_bytes_never_break_the_server(send: Send, server: EmbeddedServer) -> None:
    for length in (1, 7, 64, 1000, 65536):
        assert refusal(send, b"\xc3" + os.urandom(length) + b"\xff")
    assert not server.fault()
