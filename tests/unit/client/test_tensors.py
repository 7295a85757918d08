"""Conversion of plain values to tensors, of tensors to bytes and back, and of tensors to results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from hfx import names
from hfx.client import GenerationSettings, ModelMetadata, Request, TensorMetadata, calls
from hfx.client.grpc_transport import decode_response, encode_request
from hfx.client.results import Token, decode_classification, decode_entities, decode_generation
from hfx.client.tensors import DATA_TYPES, Array, decode_event, decode_infer, encode_infer, to_tensors
from hfx.errors import RequestRefused, ServerError, UsageError
from hfx.metadata import check_outputs, check_values
from hfx.names import Task
from hfx.tasks import check_summarizer, task_of

Wire = Callable[[dict[str, Array]], dict[str, Array]]


def strings(*texts: str) -> Array:
    return to_tensors({"text": texts}, {"text": "BYTES"})["text"]


def by_grpc(tensors: dict[str, Array]) -> dict[str, Array]:
    """Return `tensors` as they come back from a server that echoes them."""
    request = encode_request(Request("model", tensors, (), "id", 1.0))
    response = service_pb2.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return decode_response(response)


def by_http(tensors: dict[str, Array]) -> dict[str, Array]:
    """Do what `by_grpc` does, over HTTP."""
    body, headers = encode_infer("id", tensors)
    length = int(headers["inference-header-content-length"])
    head = json.loads(body[:length])
    answer = json.dumps({"outputs": head["inputs"]}).encode()
    return decode_infer(answer + body[length:], {"inference-header-content-length": str(len(answer))})


@pytest.fixture(params=[by_grpc, by_http])
def returned(request: pytest.FixtureRequest) -> Wire:
    wire: Wire = request.param
    return wire


@pytest.mark.parametrize("texts", [[], ["", "next"], ["naïve 🎈 日本"], ["\x00"], ["x" * 100_000]], ids=len)
def test_strings_survive_encoding_and_decoding(texts: list[str], returned: Wire) -> None:
    assert returned({"text": strings(*texts)})["text"].tolist() == [[text.encode() for text in texts]]


@pytest.mark.parametrize("dtype", DATA_TYPES.values(), ids=DATA_TYPES)
def test_numbers_survive_encoding_and_decoding(dtype: np.dtype[np.generic], returned: Wire) -> None:
    array = np.arange(6).reshape(1, 2, 3).astype(dtype)
    back = returned({"numbers": array})["numbers"]
    assert back.dtype == dtype
    assert (back == array).all()


@pytest.mark.parametrize(
    ("datatype", "shape", "content"),
    [
        ("BYTES", [1, 1], b"\x05\x00\x00\x00abc"),
        ("BYTES", [1, 1], b"\x05\x00"),
        ("BYTES", [1, 2], b"\x01\x00\x00\x00a"),
        ("FP32", [1, 2], b"\x00" * 4),
        ("FP32", [1, 1], b"\x00" * 3),
        ("FP99", [1], b"\x00"),
        ("BYTES", [1, 1], None),
    ],
)
def test_a_damaged_tensor_is_an_error_of_the_server(datatype: str, shape: list[int], content: bytes | None) -> None:
    response = service_pb2.ModelInferResponse(raw_output_contents=[] if content is None else [content])
    response.outputs.add(name="label", datatype=datatype, shape=shape)
    with pytest.raises(ServerError, match="tensor"):
        decode_response(response)


def test_values_become_tensors_of_one_row() -> None:
    types = {"text": "BYTES", "flag": "BOOL", "count": "INT32", "share": "FP32", "seed": "UINT64"}
    values = {"text": ["a", "é"], "flag": [True], "count": [3], "share": [1], "seed": [2**64 - 1]}
    found = {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in to_tensors(values, types).items()}
    assert found == {
        "text": ("object", [[b"a", "é".encode()]]),
        "flag": ("bool", [[True]]),
        "count": ("int32", [[3]]),
        "share": ("float32", [[1.0]]),
        "seed": ("uint64", [[2**64 - 1]]),
    }


@pytest.mark.parametrize(
    ("labels", "top_k", "said"),
    [([], None, "no candidate labels"), *((["a"], k, "top_k") for k in (0, -1, 2**31, True, 1.5))],
)
def test_labels_and_their_number_are_checked(labels: list[str], top_k: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        calls.zero_shot("m", labels, None, top_k)
    if not labels:
        with pytest.raises(UsageError, match=said):
            calls.label_tokens("m", labels)


@pytest.mark.parametrize("threshold", [0, -1, 1.01, True, "0.5", float("nan")])
def test_a_threshold_is_a_share_above_0(threshold: Any) -> None:
    with pytest.raises(UsageError, match="threshold is"):
        calls.label_tokens("m", ["a"], threshold=threshold)


def test_labels_in_one_string_are_refused_with_the_list_they_may_mean() -> None:
    for make in (lambda: calls.zero_shot("m", "good,bad", None, None), lambda: calls.label_tokens("m", "good,bad")):
        with pytest.raises(UsageError) as caught:
            make()
        assert "['good', 'bad']" in caught.value.fix


def test_a_model_that_needs_labels_is_not_called_without_them() -> None:
    tensors = tuple(TensorMetadata(name, "BYTES", (-1, -1)) for name in ("text_input", "candidate_labels", "entities"))
    model = ModelMetadata("m", tensors, tensors)
    calls.label_tokens("m", ["a"])("text").check(model)
    for call in (calls.label_tokens("m")("text"), calls.infer("m", {"text_input": "text"})):
        with pytest.raises(UsageError, match="'m' needs labels"):
            call.check(model)
    with pytest.raises(UsageError, match="no input candidate_labels"):
        calls.label_tokens("m", ["a"])("text").check(ModelMetadata("m", tensors[:1], tensors))


def test_settings_that_are_left_out_are_not_sent() -> None:
    assert set(calls.zero_shot("m", ["a"], None, None)("text").values) == {"text_input", "candidate_labels"}
    values = calls.zero_shot("m", ["a"], False, 1)("text").values
    assert values["top_k"] == [1] and values["multi_label"] == [False]
    assert set(calls.label_tokens("m")("text").values) == {"text_input"}
    values = calls.label_tokens("m", ["a"], 0.3, nested=False, multi_label=True, stride=0)("text").values
    assert values == {
        "text_input": ["text"], "candidate_labels": ["a"], "threshold": [0.3], "stride": [0], "nested": [False],
        "multi_label": [True],
    }  # fmt: skip


def test_a_classification_keeps_the_order_of_its_labels() -> None:
    result = decode_classification({"label": strings("b", "a"), "score": np.array([[0.75, 0.25]], np.float32)})
    assert [(p.label, p.score) for p in result.predictions] == [("b", 0.75), ("a", 0.25)]
    assert (result.label, result.score, result.truncated_tokens) == ("b", 0.75, 0)


def test_entities_come_from_their_json() -> None:
    text = '[{"entity": "PER", "score": 0.5, "start": 0, "end": 3, "word": "Zoë"}]'
    result = decode_entities({"entities": strings(text), "truncated_tokens": np.array([[7]], np.int32)})
    assert result.entities[0].word == "Zoë"
    assert result.truncated_tokens == 7


INFINITE = '[{"entity": "PER", "score": 1, "start": 0, "end": Infinity, "word": "a"}]'


@pytest.mark.parametrize(
    "text", ["", "{}{}", "3", '[{"entity": "PER"}]', "[3]", "null", INFINITE, "[" * 100_000], ids=range(8)
)
def test_entities_that_can_not_be_read_are_an_error_of_the_server(text: str) -> None:
    with pytest.raises(ServerError):
        decode_entities({"entities": strings(text)})


def test_a_tensor_that_is_missing_is_named() -> None:
    with pytest.raises(ServerError, match="'score'"):
        decode_classification({"label": strings("a")})


def model(inputs: set[str], outputs: set[str], task: str = "") -> ModelMetadata:
    given, returned = (tuple(TensorMetadata(name, "BYTES", (1,)) for name in names) for names in (inputs, outputs))
    return ModelMetadata("m", given, returned, task)


@pytest.mark.parametrize(
    ("inputs", "outputs", "task"),
    [
        ({"text_input", "top_k"}, {"label", "score"}, Task.TEXT_CLASSIFICATION),
        ({"text_input", "candidate_labels"}, {"label", "score"}, Task.ZERO_SHOT_CLASSIFICATION),
        ({"text_input"}, {"entities"}, Task.TOKEN_CLASSIFICATION),
        ({"text_input"}, {"embedding", "truncated_tokens"}, Task.FEATURE_EXTRACTION),
        ({"question", "context"}, {"answer", "score", "start", "end"}, Task.QUESTION_ANSWERING),
        ({"query", "text_input", "raw_scores"}, {"score", "truncated_tokens"}, Task.TEXT_RANKING),
        ({"text_input", "max_tokens"}, {"text_output", "finish_reason"}, Task.TEXT_GENERATION),
    ],
)
def test_the_tensors_of_a_model_determine_its_task(inputs: set[str], outputs: set[str], task: Task) -> None:
    assert task_of(model(inputs, outputs)) is task
    assert task_of(model(inputs, outputs, "summarization")) is Task.SUMMARIZATION


def test_a_model_whose_tensors_fit_no_task_is_refused() -> None:
    with pytest.raises(RequestRefused, match="input_ids"):
        task_of(model({"input_ids"}, {"logits"}))


@pytest.mark.parametrize("task", ["summarization", "text2text-generation", ""])
def test_summarizers_and_generators_without_a_task_may_summarize(task: str) -> None:
    check_summarizer(model({"text_input"}, {"text_output"}, task))


@pytest.mark.parametrize(("output", "task"), [("text_output", "text-generation"), ("label", "text-classification")])
def test_a_model_for_another_task_does_not_summarize(output: str, task: str) -> None:
    with pytest.raises(UsageError, match=f"for {task}"):
        check_summarizer(model({"text_input"}, {output}, task if output == "text_output" else ""))


TYPED = ModelMetadata(
    "m",
    tuple(TensorMetadata(name, name, (1,)) for name in ("BYTES", "BOOL", "INT32", "UINT64", "FP32")),
    (TensorMetadata("label", "BYTES", (1,)),),
)


@pytest.mark.parametrize(
    ("name", "held", "not_held"),
    [
        ("BYTES", ["a"], [3, b"a"]), ("BOOL", [False], [1]), ("FP32", [1, 0.5], ["1", True]),
        ("INT32", [2**31 - 1, -(2**31)], [2**31, True, 1.0]), ("UINT64", [2**64 - 1, 0], [-1, 2**64]),
    ],
)  # fmt: skip
def test_a_value_that_its_tensor_can_not_hold_is_refused_by_name(
    name: str, held: list[Any], not_held: list[Any]
) -> None:
    check_values(TYPED, {name: held})
    for value in not_held:
        with pytest.raises(UsageError, match=f"input {name} of 'm' is"):
            check_values(TYPED, {name: [value]})


def test_an_input_that_the_model_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match="no input max_tokens: it takes BYTES, BOOL, INT32"):
        check_values(TYPED, {"max_tokens": [3]})


def test_an_answer_that_the_model_does_not_give_is_refused_with_those_it_gives() -> None:
    with pytest.raises(UsageError, match="has no output text_output: it returns label"):
        check_outputs(TYPED, ("label", "text_output"))


DEEP = (b"[" * 200_000, b"]" * 200_000)
NESTED = b'{"outputs": [{"name": "a", "datatype": "INT32", "shape": [1], "data": %b1%b}]}' % DEEP


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"3", b"<html>", b'{"outputs": [{}]}', b'{"outputs": 3}', NESTED], ids=range(8)
)
def test_a_body_that_is_no_answer_is_an_error_of_the_server(body: bytes) -> None:
    with pytest.raises(ServerError, match="can't be read"):
        decode_infer(body, {})


TOKENS = (
    Token(5, "caf", -0.5, False, (Token(5, "caf", -0.5), Token(6, "thé", -2.0))),
    Token(1, "</s>", -0.75, True, (Token(7, "bytes:\\xc3", -0.25), Token(1, "</s>", -0.75, True))),
)
WITH_TOKENS: dict[str, Array] = {
    "text_output": strings("caf"),
    "finish_reason": strings("stop"),
    "input_tokens": np.int32([[3]]),
    "output_tokens": np.int32([[2]]),
    "output_log_probs": np.float32([[-0.5, -0.75]]),
    "token_ids": np.int32([[[5, 5, 6], [1, 7, 1]]]),
    "token_texts": strings("caf", "caf", "thé", "</s>", "bytes:\\xc3", "</s>").reshape(1, 2, 3),
    "token_log_probs": np.float32([[[-0.5, -0.5, -2], [-0.75, -0.25, -0.75]]]),
    "token_special": np.bool_([[[0, 0, 0], [1, 0, 1]]]),
}


def test_tokens_survive_encoding_and_decoding(returned: Wire) -> None:
    found = decode_generation(returned(WITH_TOKENS))
    assert (found.tokens, found.log_probs) == (TOKENS, (-0.5, -0.75))
    assert found.tokens[1].top[0].raw == b"\xc3" and found.tokens[0].top[1].raw == "thé".encode()


def test_tokens_and_alternatives_of_an_event_are_decoded() -> None:
    types = {"text_output": "BYTES", "finish_reason": "BYTES", "token_texts": "BYTES", "token_special": "BOOL"}
    types |= {"output_log_probs": "FP32", "token_log_probs": "FP32"}
    outputs = [TensorMetadata(name, types.get(name, "INT32"), (-1, -1)) for name in WITH_TOKENS]
    flat = {name: array.ravel().tolist() for name, array in WITH_TOKENS.items()}
    fields = {name: [each.decode() if isinstance(each, bytes) else each for each in flat[name]] for name in flat}
    event = decode_event("data: " + json.dumps(fields), outputs)
    assert isinstance(event, dict) and decode_generation(event).tokens == TOKENS


def test_tokens_that_do_not_fit_each_other_are_an_error() -> None:
    with pytest.raises(ServerError, match="6 ids of 4 tokens"):
        decode_generation({**WITH_TOKENS, "output_log_probs": np.float32([[0, 0, 0, 0]])})
    with pytest.raises(ServerError, match="5 ids of 2 tokens"):
        decode_generation({**WITH_TOKENS, "token_ids": np.int32([[5, 5, 6, 1, 7]])})


NUMBERS = {names.INPUT_TOKENS: 3, names.OUTPUT_TOKENS: 1}
TEXTS = {names.TEXT_OUTPUT: b"a", names.FINISH_REASON: b"stop"}
WRONG_TOKENS = {
    names.OUTPUT_LOG_PROBS: -1.0,
    names.TOKEN_IDS: 7,
    names.TOKEN_TEXTS: 7,
    names.TOKEN_LOG_PROBS: -1.0,
    names.TOKEN_SPECIAL: False,
}


@pytest.mark.parametrize(
    ("call", "outputs"),
    [
        (calls.classify("m", None)("a"), {names.LABEL: b"x", names.SCORE: b"high"}),
        (calls.embed("m")("a"), {names.EMBEDDING: b"x"}),
        (calls.predict("m", None, None)(("a", "b")), {names.SCORE: b"high"}),
        (
            calls.generate("m", GenerationSettings())("a"),
            NUMBERS | TEXTS | WRONG_TOKENS | {names.OUTPUT_LOG_PROBS: -1.0},
        ),
    ],
    ids=range(4),
)
def test_tensors_of_other_types_than_the_tasks_are_the_servers_error(
    call: calls.Call[Any], outputs: dict[str, Any]
) -> None:
    arrays = {
        name: np.array([[value]], object if isinstance(value, bytes) else None) for name, value in outputs.items()
    }
    with pytest.raises(ServerError, match="The answer of the model 'm' can't be read"):
        call.result(arrays)
