"""The requests of MLServer's published Hugging Face example, against `hfx serve`."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hfx.client import Client
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.dialect_calls import PROMPT, RANKER, call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton
TEXT = "The garden was lovely, but Anna went to Oslo by train."


def tensor(name: str, *data: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": list(data)}


def infer(server: ServeProcess, model: str, *inputs: dict[str, Any], **parameters: Any) -> list[Any]:
    """Return the parsed answers."""
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
    assert answers == [[{"generated_text": "a" + recital.text("a", 4)}]] * 512


def test_every_request_of_50_a_second_for_3_seconds_is_answered(dialects: ServeProcess) -> None:
    body = b'{"inputs":[{"name":"text_inputs","shape":[1],"datatype":"BYTES","data":["test"]}]}'
    began = time.monotonic()

    def send(number: int) -> int:
        time.sleep(max(0.0, began + number / 50 - time.monotonic()))
        return call(dialects, "/v2/models/stories/infer", body)[0]

    with ThreadPoolExecutor(150) as pool:
        assert list(pool.map(send, range(150))) == [200] * 150


def test_every_other_task_is_answered_like_hfxs_client(dialects: ServeProcess, grpc: Client) -> None:
    question, context = "Where did Anna go?", TEXT
    expected = grpc.answer("answers-fp32", question, context)
    [answer] = infer(dialects, "answers-fp32", tensor("question", question), tensor("context", context))
    assert list(answer) == ["score", "start", "end", "answer"]
    assert (answer["score"], answer["answer"]) == (expected.score, expected.answer)
    best = grpc.classify("sentiment-fp32", TEXT)
    assert infer(dialects, "sentiment-fp32", tensor("args", TEXT)) == [{"label": best.label, "score": best.score}]
    [scores] = infer(dialects, "nli-fp32", tensor("args", TEXT), tensor("candidate_labels", "travel", "food"))
    assert scores["scores"] == [each.score for each in grpc.zero_shot("nli-fp32", TEXT, ["travel", "food"]).predictions]
    scores = [each.score for each in grpc.label_tokens("entities-fp32", TEXT).entities]
    assert [each["score"] for each in infer(dialects, "entities-fp32", tensor("args", TEXT))] == scores
    [entities] = infer(dialects, "entities-fp32", tensor("inputs", TEXT))
    assert [each["score"] for each in entities] == scores
    [vector] = infer(dialects, "similar-int8", tensor("args", TEXT))
    assert vector == grpc.embed("similar-int8", TEXT).tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tensor("texts", TEXT)], "inputs are texts. Send the texts as args."),
        ([tensor("text_input", TEXT)], "shape [n, 1]"),
        ([tensor("args", TEXT), tensor("text_inputs", TEXT)], "inputs are args, text_inputs. Send the texts as args."),
        ([{**tensor("args"), "data": [3]}], "args is 3"),
        ([tensor("args", TEXT), tensor("args", TEXT)], "same name"),
        ([tensor("args", TEXT), {**tensor("eta_cutoff"), "data": [0.5]}], "eta_cutoff"),
    ],
)
def test_an_invalid_or_unsupported_input_is_a_400(inputs: list[Any], message: str, dialects: ServeProcess) -> None:
    status, _, answer = call(dialects, "/v2/models/stories/infer", {"inputs": inputs})
    assert status == 400 and message in answer["error"], answer


# Requests of mlserver's and mlserver-huggingface's codecs (1.7.1) in their own words: codec, name, shape, content type,
# data.
QA = '{"question": "Where did Anna go?", "context": "The garden was lovely, but Anna went to Oslo by train."}'
CODECS: list[tuple[str, str, str, list[int], str, list[Any]]] = [
    ("sentiment-fp32", "StringCodec", "args", [1, 1], "str", [TEXT]),
    ("sentiment-fp32", "StringCodec", "array_inputs", [2, 1], "str", [TEXT, PROMPT]),
    ("sentiment-fp32", "StringRequestCodec", "input-1", [2, 1], "str", [TEXT, PROMPT]),
    ("sentiment-fp32", "NumpyCodec", "inputs", [2, 1], "np", [TEXT, PROMPT]),
    ("sentiment-fp32", "RawCodec", "inputs", [1], "raw", [TEXT]),
    ("sentiment-fp32", "HuggingfaceSingleJSONCodec", "args", [1], "hg_json", [json.dumps(TEXT)]),
    ("answers-fp32", "HuggingfaceSingleJSONCodec", "inputs", [1], "hg_json", [QA]),
    ("answers-fp32", "HuggingfaceListJSONCodec", "inputs", [1, 1], "hg_jsonlist", [QA]),
]


@pytest.mark.parametrize(("model", "codec", "name", "shape", "kind", "data"), CODECS)
def test_inputs_written_by_mlservers_codecs_are_answered(
    model: str,
    codec: str,
    name: str,
    shape: list[int],
    kind: str,
    data: list[Any],
    dialects: ServeProcess,
    grpc: Client,
) -> None:
    row = {"name": name, "shape": shape, "datatype": "BYTES", "parameters": {"content_type": kind}, "data": data}
    answers = infer(dialects, model, row)
    if model == "answers-fp32":
        assert [each["answer"] for each in answers] == [grpc.answer(model, "Where did Anna go?", TEXT).answer]
    else:
        texts = [json.loads(each) if kind == "hg_json" else each for each in data]
        assert [each["label"] for each in answers] == [grpc.classify(model, text).label for text in texts]


def test_the_request_codec_of_the_runtime_is_answered(dialects: ServeProcess, grpc: Client) -> None:
    def strings(name: str, *data: Any, kind: str = "str") -> dict[str, Any]:
        shape = [len(data), 1] if kind == "str" else [1]
        parameters = {"content_type": kind}
        return {"name": name, "shape": shape, "datatype": "BYTES", "parameters": parameters, "data": list(data)}

    hf = {"content_type": "hf"}
    top = infer(dialects, "sentiment-fp32", strings("args", TEXT), strings("top_k", 2, kind="raw"), **hf)
    assert [each["label"] for each in top] == [
        each.label for each in grpc.classify("sentiment-fp32", TEXT, top_k=2).predictions
    ]
    several = infer(dialects, "sentiment-fp32", strings("inputs", TEXT, PROMPT), strings("top_k", 2, kind="raw"), **hf)
    assert several[0] == top and len(several) == 2
    asked = strings("question", "Who?"), strings("context", TEXT)
    for kind in ("hf", "pd"):
        [answer] = infer(dialects, "answers-fp32", *asked, content_type=kind)
        assert answer["answer"] == grpc.answer("answers-fp32", "Who?", TEXT).answer
    labels = strings("sequences", TEXT, PROMPT), strings("candidate_labels", "travel", "food")
    rows = infer(dialects, "nli-fp32", *labels, strings("multi_label", True, kind="raw"), **hf)
    assert [row["scores"] for row in rows] == [
        [each.score for each in found.predictions]
        for found in grpc.zero_shot("nli-fp32", [TEXT, PROMPT], ["travel", "food"], multi_label=True)
    ]
    [row] = infer(dialects, "stories", strings("text_inputs", PROMPT), strings("max_new_tokens", 3, kind="raw"), **hf)
    assert row == [{"generated_text": PROMPT + grpc.generate("stories", PROMPT, max_tokens=3).text}]


@pytest.mark.parametrize("kind", ["base64", "datetime", "nplist", "pillow_image"])
def test_content_types_other_than_text_are_refused(kind: str, dialects: ServeProcess) -> None:
    for name in ("args", "text_input"):
        row = {**tensor(name, "YQ=="), "shape": [1, 1], "parameters": {"content_type": kind}}
        status, _, answer = call(dialects, "/v2/models/sentiment-fp32/infer", {"inputs": [row]})
        assert status == 400 and f"content_type {kind}. Send texts with str" in answer["error"]


def test_a_string_codec_with_the_model_s_own_names_is_tritons(dialects: ServeProcess) -> None:
    row = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "parameters": {"content_type": "str"}}
    for parameters in ({}, {"content_type": "pd"}):
        body = {"inputs": [row | {"data": [TEXT]}], "parameters": parameters}
        _, _, answer = call(dialects, "/v2/models/sentiment-fp32/infer", body)
        assert {output["name"] for output in answer["outputs"]} >= {"label", "score"}


def test_requests_with_tritons_own_inputs_go_to_triton_unchanged(dialects: ServeProcess) -> None:
    own = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [TEXT]}
    _, _, answer = call(dialects, "/v2/models/sentiment-fp32/infer", {"inputs": [own]})
    assert {output["name"] for output in answer["outputs"]} >= {"label", "score"}
    status, _, answer = call(dialects, f"/v2/models/{RANKER}/infer", {"inputs": [tensor("args", TEXT)]})
    assert status == 400 and "is for text-ranking" in answer["error"]  # no pipeline of that runtime
    status, _, answer = call(dialects, "/v2/models/nothing/infer", {"inputs": [tensor("args", TEXT)]})
    assert status == 404 and "unknown model" in answer["error"]
