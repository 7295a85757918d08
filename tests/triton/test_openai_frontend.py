"""Requests that Triton's OpenAI frontend makes for models other than vLLM's, and the parts of answers that it reads.

Source: triton-inference-server/server, python/openai/openai_frontend (2026): engine/utils/triton.py,
`_create_trtllm_generate_request` (tensors and their shapes) and `_get_usage_from_response`; engine/triton_engine.py
(responses); schemas/openai.py (the settings that it always sends).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.servers.generation_server import RECITAL

pytestmark = pytest.mark.triton

TOKENS = 12
DATATYPES = {"float32": "FP32", "int32": "INT32", "uint64": "UINT64", "bool": "BOOL", "object": "BYTES"}


def inputs(prompt: str, stream: bool, **request: Any) -> list[Any]:
    """Return the tensors of a completion; `request` are fields that its caller has set."""
    tensors: dict[str, Any] = {
        "text_input": np.array([[prompt.encode()]], np.object_),
        "stream": np.bool_([[stream]]),
        "max_tokens": np.int32([[TOKENS]]),
        "top_p": np.float32([[request.get("top_p", 1)]]),
        "frequency_penalty": np.float32([[0]]),
        "presence_penalty": np.float32([[0]]),
        "temperature": np.float32([[request.get("temperature", 1)]]),
        "return_num_input_tokens": np.bool_([[True]]),
        "return_num_output_tokens": np.bool_([[True]]),
    }
    if "stop" in request:
        tensors["stop_words"] = np.array([[stop.encode() for stop in request["stop"]]], np.object_)
    if "seed" in request:
        tensors["seed"] = np.uint64([[request["seed"]]])
    made = []
    for name, array in tensors.items():
        made.append(triton.InferInput(name, array.shape, DATATYPES[array.dtype.name]))
        made[-1].set_data_from_numpy(array)
    return made


def responses(server: EmbeddedServer, model: str, made: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the output tensors of each response; the frontend reads one value of each."""
    arrived: list[tuple[Any, Any]] = []
    with triton.InferenceServerClient(server.grpc_url) as client:
        if not model.endswith("_stream"):
            arrived = [(client.infer(model, list(made)), None)]
        else:
            client.start_stream(lambda result, error: arrived.append((result, error)))
            client.async_stream_infer(model, list(made))
            client.stop_stream()
    assert not [error for _, error in arrived if error]
    names = ("text_output", "num_input_tokens", "num_output_tokens")
    return [{name: result.as_numpy(name).reshape(()).item() for name in names} for result, _ in arrived]


def usage(answers: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the prompt's tokens, from the first response, and the text's, summed up, as the frontend counts them."""
    return answers[0]["num_input_tokens"], sum(answer["num_output_tokens"] for answer in answers)


@pytest.mark.parametrize("model", [RECITAL, f"{RECITAL}_stream"])
def test_a_completion_has_its_text_and_usage(model: str, writing_server: EmbeddedServer, recital: Recital) -> None:
    answers = responses(writing_server, model, inputs("a", stream=False, temperature=0.0))
    assert [answer["text_output"].decode() for answer in answers] == [recital.text("a", TOKENS)]
    assert usage(answers) == (1, TOKENS)


def test_a_stream_has_its_text_and_usage(writing_server: EmbeddedServer, recital: Recital) -> None:
    answers = responses(writing_server, f"{RECITAL}_stream", inputs("a", stream=True, temperature=0.0))
    assert b"".join(answer["text_output"] for answer in answers).decode() == recital.text("a", TOKENS)
    assert usage(answers) == (1, TOKENS)


@pytest.mark.parametrize("model", ["stories", "summaries", "notes"])
def test_models_with_beam_search_accept_what_the_frontend_always_sends(
    model: str, writing_server: EmbeddedServer
) -> None:
    for member in (model, f"{model}_stream"):
        answers = responses(writing_server, member, inputs("Once upon a time.", stream=False, seed=3, stop=["zebra"]))
        prompt, tokens = usage(answers)
        assert prompt > 0 and 0 < tokens <= TOKENS
