"""NVIDIA's unmodified tritonclient in all its variants."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.servers.generation_server import RECITAL

pytestmark = pytest.mark.triton

STREAM = f"{RECITAL}_stream"
TOKENS = 120
PROMPT = "日本 👩‍👧"
TENSORS: dict[str, tuple[str, Any, Any]] = {
    "text_input": ("BYTES", np.object_, PROMPT.encode()),
    "max_tokens": ("INT32", np.int32, TOKENS),
}


@pytest.fixture(scope="module")
def whole(recital: Recital) -> str:
    return recital.text(PROMPT, TOKENS)


def inputs(library: Any, **more: tuple[str, Any, Any]) -> list[Any]:
    made = []
    for name, (datatype, dtype, value) in {**TENSORS, **more}.items():
        made.append(library.InferInput(name, [1, 1], datatype))
        made[-1].set_data_from_numpy(np.array([[value]], dtype))
    return made


def text(result: Any) -> str:
    return str(result.as_numpy("text_output")[0, 0].decode())


def test_tritonclient_http_gets_the_whole_text(writing_server: EmbeddedServer, whole: str) -> None:
    with tritonclient.http.InferenceServerClient(
        writing_server.http_url.removeprefix("http://"), concurrency=4
    ) as client:
        assert text(client.infer(RECITAL, inputs(tritonclient.http))) == whole
        waiting = [client.async_infer(RECITAL, inputs(tritonclient.http)) for _ in range(4)]
        assert [text(each.get_result()) for each in waiting] == [whole] * 4


def test_tritonclient_grpc_gets_the_whole_text(writing_server: EmbeddedServer, whole: str) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(writing_server.grpc_url) as client:
        assert text(client.infer(RECITAL, inputs(tritonclient.grpc))) == whole
        for _ in range(4):
            client.async_infer(RECITAL, inputs(tritonclient.grpc), lambda result, error: answers.put((result, error)))
        for _ in range(4):
            result, error = answers.get(timeout=30)
            assert error is None and text(result) == whole


def test_tritonclient_grpc_can_request_the_text_output_alone(writing_server: EmbeddedServer, whole: str) -> None:
    with tritonclient.grpc.InferenceServerClient(writing_server.grpc_url) as client:
        outputs = [tritonclient.grpc.InferRequestedOutput("text_output")]
        result = client.infer(RECITAL, inputs(tritonclient.grpc), outputs=outputs, request_id="mine")
        answer = result.get_response()
    assert text(result) == whole
    assert [output.name for output in answer.outputs] == ["text_output"] and answer.id == "mine"


def test_tritonclient_grpc_streams_several_requests_on_one_stream(writing_server: EmbeddedServer, whole: str) -> None:
    """Responses are interleaved and have their request's id; the final flag is on the last piece of each, once."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    texts, finals = {str(number): "" for number in range(4)}, dict.fromkeys(map(str, range(4)), 0)
    stream = {"stream": ("BOOL", np.bool_, True)}
    with tritonclient.grpc.InferenceServerClient(writing_server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in texts:
            client.async_stream_infer(STREAM, inputs(tritonclient.grpc, **stream), request_id=number)
        while sum(finals.values()) < len(texts):
            result, error = answers.get(timeout=30)
            assert error is None
            answer = result.get_response()
            assert not finals[answer.id]
            texts[answer.id] += text(result)
            finals[answer.id] += answer.parameters["triton_final_response"].bool_param
            assert bool(finals[answer.id]) == bool(result.as_numpy("finish_reason")[0, 0])
        client.stop_stream()
    assert answers.empty()
    assert set(texts.values()) == {whole}


def test_tritonclient_grpc_aio_gets_whole_and_streamed_texts(writing_server: EmbeddedServer, whole: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        stream = {"stream": ("BOOL", np.bool_, True)}
        yield {"model_name": STREAM, "inputs": inputs(tritonclient.grpc, **stream)}

    async def ask() -> tuple[list[str], str]:
        async with tritonclient.grpc.aio.InferenceServerClient(writing_server.grpc_url) as client:
            calls = (client.infer(RECITAL, inputs(tritonclient.grpc)) for _ in range(4))
            answers = [text(each) for each in await asyncio.gather(*calls)]
            pieces = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                pieces.append(text(result))
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break
            return answers, "".join(pieces)

    assert asyncio.run(ask()) == ([whole] * 4, whole)
