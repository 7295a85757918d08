"""The payloads of MLServer's published Hugging Face example, against `hfx serve`."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hfx.client import Client
from tests.rigs.dialect_calls import PROMPT, RANKER, call
from tests.rigs.generation_rig import RECITAL
from tests.rigs.reciting import Recital
from tests.rigs.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TEXT = "The garden was lovely, but Anna went to Oslo by train."


def tensor(name: str, *data: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": list(data)}


def infer(server: ServeProcess, model: str, *inputs: dict[str, Any], **parameters: Any) -> list[Any]:
    """The answers, each parsed."""
    body = {"inputs": list(inputs), **({"parameters": parameters} if parameters else {})}
    status, _, answer = call(server, f"/v2/models/{model}/infer", body)
    assert status == 200, answer
    assert list(answer) == ["model_name", "id", "parameters", "outputs"]
    [output] = answer["outputs"]
    described = {"name": "output", "shape": [len(output["data"]), 1], "datatype": "BYTES"}
    assert output == {**described, "parameters": {"content_type": "hg_jsonlist"}, "data": output["data"]}
    return [json.loads(data) for data in output["data"]]


def test_one_text_has_its_prompt_and_its_continuation(dialects: ServeProcess, grpc: Client) -> None:
    text = grpc.generate("stories", "this is a test").text
    assert infer(dialects, "stories", tensor("args", "this is a test")) == [{"generated_text": "this is a test" + text}]
    short = grpc.generate("stories", PROMPT, max_tokens=5).text
    settings = {"max_new_tokens": 5, "return_full_text": False}
    assert infer(dialects, "stories", tensor("args", PROMPT), **settings) == [{"generated_text": short}]


def test_512_texts_come_with_a_shape_of_1(dialects: ServeProcess, recital: Recital) -> None:
    answers = infer(dialects, RECITAL, tensor("text_inputs", *["a"] * 512), max_new_tokens=4)
    assert answers == [{"generated_text": "a" + recital.text("a", 4)}] * 512


def test_50_a_second_for_3_seconds_are_all_answered(dialects: ServeProcess) -> None:
    body = b'{"inputs":[{"name":"text_inputs","shape":[1],"datatype":"BYTES","data":["test"]}]}'
    began = time.monotonic()

    def send(number: int) -> int:
        time.sleep(max(0.0, began + number / 50 - time.monotonic()))
        return call(dialects, "/v2/models/stories/infer", body)[0]

    with ThreadPoolExecutor(150) as pool:
        assert list(pool.map(send, range(150))) == [200] * 150


def test_other_tasks(dialects: ServeProcess, grpc: Client) -> None:
    question, context = "Where did Anna go?", TEXT
    expected = grpc.answer("answers-fp32", question, context)
    [answer] = infer(dialects, "answers-fp32", tensor("question", question), tensor("context", context))
    assert list(answer) == ["score", "start", "end", "answer"]
    assert (answer["score"], answer["answer"]) == (expected.score, expected.answer)
    best = grpc.classify("sentiment-fp32", TEXT)
    assert infer(dialects, "sentiment-fp32", tensor("args", TEXT)) == [{"label": best.label, "score": best.score}]
    [scores] = infer(dialects, "nli-fp32", tensor("args", TEXT), tensor("candidate_labels", "travel", "food"))
    assert scores["scores"] == [each.score for each in grpc.zero_shot("nli-fp32", TEXT, ["travel", "food"]).predictions]
    [entities] = infer(dialects, "entities-fp32", tensor("args", TEXT))
    assert [each["score"] for each in entities] == [
        each.score for each in grpc.label_tokens("entities-fp32", TEXT).entities
    ]
    [vector] = infer(dialects, "similar-int8", tensor("args", TEXT))
    assert vector == grpc.embed("similar-int8", TEXT).tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tensor("texts", TEXT)], "inputs are texts. Send the texts as args"),
        ([tensor("text_input", TEXT)], "shape [n, 1]"),
        ([tensor("args", TEXT), tensor("text_inputs", TEXT)], "args or text_inputs"),
        ([{**tensor("args"), "data": [3]}], "is 3"),
        ([tensor("args", TEXT), tensor("args", TEXT)], "same name"),
        ([tensor("args", TEXT), {**tensor("eta_cutoff"), "data": [0.5]}], "eta_cutoff"),
    ],
)
def test_what_cant_be_honoured_is_a_400(inputs: list[Any], message: str, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v2/models/stories/infer", {"inputs": inputs})
    assert status == 400 and message in answer["error"], answer


def test_tritons_own_requests_are_still_tritons(dialects: ServeProcess) -> None:
    own = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [TEXT]}
    _, _, answer = call(dialects, "/v2/models/sentiment-fp32/infer", {"inputs": [own]})
    assert {output["name"] for output in answer["outputs"]} >= {"label", "score"}
    status, _, answer = call(dialects, f"/v2/models/{RANKER}/infer", {"inputs": [tensor("args", TEXT)]})
    assert status == 400 and "is for text-ranking" in answer["error"]  # no pipeline of that runtime
    status, _, answer = call(dialects, "/v2/models/nothing/infer", {"inputs": [tensor("args", TEXT)]})
    assert status == 404 and "unknown model" in answer["error"]
