"""Generators through a real Triton: the same texts as in process, whole, in pieces, and through the relay."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.client import Client
from hfx.client.tasks import task_of
from hfx.errors import RequestRefused
from hfx.local_generation import LocalGenerator
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.conftest import export_zoo

pytestmark = pytest.mark.triton

MODELS = {"stories": "stories-gpt2", "summaries": "summaries-bart"}
CALLERS = 8


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a decoder and an encoder-decoder, both int8."""
    folder = tmp_path_factory.mktemp("generators")
    for name, checkpoint in MODELS.items():
        export_zoo(checkpoint, folder, name, "int8")
    return folder


@pytest.fixture(scope="module")
def served(generators: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves them."""
    with EmbeddedServer(generators) as running:
        yield running


def texts_of(name: str, count: int) -> list[str]:
    if name == "stories":
        return [example.prompt for example in zoo.heldout("stories", count)]
    return [example.prompt + example.continuation for example in zoo.heldout("summaries", count)]


def post(server: EmbeddedServer, path: str, **fields: Any) -> str:
    body = json.dumps(fields).encode()
    with urllib.request.urlopen(f"{server.http_url}/v2/models/{path}", data=body, timeout=60) as answer:
        return str(answer.read().decode())


def events(server: EmbeddedServer, name: str, **fields: Any) -> list[dict[str, Any]]:
    """What /generate_stream sends."""
    lines = post(server, f"{name}_stream/generate_stream", stream=True, **fields).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def in_process(generators: Path, name: str, texts: Sequence[str]) -> list[Any]:
    with LocalGenerator.open(generators, name) as local:
        return [local.infer({"text_input": text}) for text in texts]


@pytest.mark.parametrize("name", MODELS)
def test_many_callers_get_the_texts_of_the_engine_in_process(
    name: str, generators: Path, served: EmbeddedServer
) -> None:
    texts = texts_of(name, 24)
    expected = in_process(generators, name, texts)
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda text: json.loads(post(served, f"{name}/generate", text_input=text)), texts))
    for answer, wanted in zip(found, expected, strict=True):
        assert {field: answer[field] for field in ("text_output", "finish_reason", "output_tokens")} == {
            field: wanted[field] for field in ("text_output", "finish_reason", "output_tokens")
        }


@pytest.mark.parametrize("name", MODELS)
def test_pieces_of_a_stream_are_the_whole_text(name: str, generators: Path, served: EmbeddedServer) -> None:
    texts = texts_of(name, 4)
    for text, wanted in zip(texts, in_process(generators, name, texts), strict=True):
        pieces = events(served, name, text_input=text)
        assert "".join(piece["text_output"] for piece in pieces) == wanted["text_output"]
        assert [bool(piece["finish_reason"]) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_story_comes_in_many_pieces(served: EmbeddedServer) -> None:
    assert len(events(served, "stories", text_input=texts_of("stories", 1)[0])) > 5


def test_a_plain_grpc_call_is_answered(generators: Path, served: EmbeddedServer) -> None:
    text = texts_of("summaries", 1)[0]
    tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    with grpc.InferenceServerClient(served.grpc_url) as client:
        answer = client.infer("summaries", [tensor]).as_numpy("text_output")
    assert answer[0, 0].decode() == in_process(generators, "summaries", [text])[0]["text_output"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_input": "Anna", "temperature": -1.0}, "temperature is -1.0; allowed:"),
        ({"text_input": "Anna", "num_beams": 0}, "num_beams is 0; allowed:"),
        ({"text_input": "Anna", "max_tokens": 100_000}, "512"),
        ({"text_input": "Anna " * 2000}, "512"),
    ],
)
def test_what_can_not_be_done_is_refused(fields: dict[str, Any], message: str, served: EmbeddedServer) -> None:
    for model in ("stories", "stories_stream"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(served, f"{model}/generate", **fields)
        assert refused.value.code == 400 and message in json.loads(refused.value.read())["error"]


def test_the_client_says_how_a_generator_is_asked(served: EmbeddedServer) -> None:
    with Client(served.grpc_url) as client, pytest.raises(RequestRefused, match="generates texts") as refused:
        task_of(client.metadata("stories"))
    assert "generate" in refused.value.fix


def test_a_cancelled_stream_frees_its_row(served: EmbeddedServer) -> None:
    """The engine has 8 rows: 40 streams that are left behind would fill them for good."""
    tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"Anna was"]], np.object_))
    streams = grpc.InferInput("stream", [1, 1], "BOOL")
    streams.set_data_from_numpy(np.array([[True]]))
    for _ in range(40):
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with grpc.InferenceServerClient(served.grpc_url) as client:
            client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
            client.async_stream_infer("stories_stream", [tensor, streams])
            assert answers.get(timeout=30)[1] is None
            client.stop_stream(cancel_requests=True)
    assert json.loads(post(served, "stories/generate", text_input="Anna was"))["finish_reason"]
