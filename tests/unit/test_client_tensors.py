"""Plain values to tensors, tensors to bytes and back, and tensors to results."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from hfx.client.inputs import question_values, text_values, to_tensors, zero_shot_values
from hfx.client.results import decode_answer, decode_classification, decode_embedding, decode_entities
from hfx.client.tasks import task_of
from hfx.client.transport import ModelMetadata, TensorMetadata
from hfx.client.wire import DATA_TYPES, Array, decode_response, encode_request
from hfx.errors import RequestRefused, ServerError, UsageError
from hfx.names import Task


def strings(*texts: str) -> Array:
    tensor: Array = np.empty((1, len(texts)), np.object_)
    tensor[0, :] = [text.encode() for text in texts]
    return tensor


def returned(**tensors: Array) -> dict[str, Array]:
    """TENSORS as they come back from a server that answers with what it was sent."""
    request = encode_request("model", tensors)
    response = service_pb2.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return decode_response(response)


@pytest.mark.parametrize("text", ["", "a", "naïve 🎈 日本", "\x00", "x" * 100_000])
def test_strings_survive_the_wire(text: str) -> None:
    assert returned(text=strings(text, "next"))["text"].tolist() == [[text.encode(), b"next"]]


@pytest.mark.parametrize("dtype", DATA_TYPES.values(), ids=DATA_TYPES)
def test_numbers_survive_the_wire(dtype: np.dtype[np.generic]) -> None:
    array = np.arange(6).reshape(1, 2, 3).astype(dtype)
    back = returned(numbers=array)["numbers"]
    assert back.dtype == dtype
    assert (back == array).all()


def test_an_empty_list_survives_the_wire() -> None:
    assert returned(text=np.empty((1, 0), np.object_))["text"].shape == (1, 0)


@pytest.mark.parametrize(
    ("datatype", "shape", "content"),
    [
        ("BYTES", [1, 1], b"\x05\x00\x00\x00abc"),
        ("BYTES", [1, 1], b"\x05\x00"),
        ("BYTES", [1, 2], b"\x01\x00\x00\x00a"),
        ("FP32", [1, 2], b"\x00" * 4),
        ("FP32", [1, 1], b"\x00" * 3),
        ("FP99", [1], b"\x00"),
    ],
)
def test_a_damaged_tensor_is_an_error_of_the_server(datatype: str, shape: list[int], content: bytes) -> None:
    response = service_pb2.ModelInferResponse(raw_output_contents=[content])
    response.outputs.add(name="label", datatype=datatype, shape=shape)
    with pytest.raises(ServerError, match="label"):
        decode_response(response)


def test_an_answer_without_its_tensors_is_an_error_of_the_server() -> None:
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="label", datatype="BYTES", shape=[1, 1])
    with pytest.raises(ServerError):
        decode_response(response)


def test_values_become_tensors_of_one_row() -> None:
    tensors = to_tensors({"text": ["a", "é"], "flag": [True], "count": [3], "share": [0.5]})
    assert tensors["text"].tolist() == [[b"a", "é".encode()]]
    assert tensors["flag"].dtype == np.bool_
    assert tensors["flag"].tolist() == [[True]]
    assert tensors["count"].dtype == np.int32
    assert tensors["count"].tolist() == [[3]]
    assert tensors["share"].dtype == np.float32


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["list"]])
def test_what_is_no_string_is_refused_by_its_type(text: object) -> None:
    with pytest.raises(UsageError, match=type(text).__name__):
        text_values(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="surrogate"):
        question_values("ok", text)


def test_labels_in_one_string_are_refused_with_the_list_they_may_mean() -> None:
    with pytest.raises(UsageError) as caught:
        zero_shot_values("text", "good,bad")
    assert "['good', 'bad']" in caught.value.fix


def test_no_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="no candidate labels"):
        zero_shot_values("text", [])


@pytest.mark.parametrize("top_k", [0, -1, 2**31, True, 1.5])
def test_a_number_of_labels_that_makes_no_sense_is_refused(top_k: int) -> None:
    with pytest.raises(UsageError, match="top_k"):
        zero_shot_values("text", ["a"], top_k=top_k)


def test_settings_that_are_left_out_are_not_sent() -> None:
    assert set(zero_shot_values("text", ["a"])) == {"text_input", "candidate_labels"}
    assert set(zero_shot_values("text", ["a"], 1, False)) == {"text_input", "candidate_labels", "top_k", "multi_label"}


def test_a_classification_keeps_the_order_of_its_labels() -> None:
    result = decode_classification({"label": strings("b", "a"), "score": np.array([[0.75, 0.25]], np.float32)})
    assert [(p.label, p.score) for p in result.predictions] == [("b", 0.75), ("a", 0.25)]
    assert (result.label, result.score, result.truncated_tokens) == ("b", 0.75, 0)


def test_entities_come_from_their_json() -> None:
    text = '[{"entity": "PER", "score": 0.5, "start": 0, "end": 3, "word": "Zoë"}]'
    result = decode_entities({"entities": strings(text), "truncated_tokens": np.array([[7]], np.int32)})
    assert result.entities[0].word == "Zoë"
    assert result.truncated_tokens == 7


@pytest.mark.parametrize("text", ["", "{}{}", "3", '[{"entity": "PER"}]', "[3]", "null"])
def test_entities_that_can_not_be_read_are_an_error_of_the_server(text: str) -> None:
    with pytest.raises(ServerError):
        decode_entities({"entities": strings(text)})


def test_an_answer_is_decoded() -> None:
    one = {name: np.array([[value]], np.int32) for name, value in (("start", 3), ("end", 5))}
    result = decode_answer({"answer": strings("hi"), "score": np.array([[0.5]], np.float32), **one})
    assert (result.answer, result.score, result.start, result.end) == ("hi", 0.5, 3, 5)


def test_an_embedding_is_one_vector() -> None:
    assert decode_embedding({"embedding": np.array([[1, 2]], np.float32)}).vector.tolist() == [1, 2]


def test_a_tensor_that_is_missing_is_named() -> None:
    with pytest.raises(ServerError, match="'score'"):
        decode_classification({"label": strings("a")})


def model(inputs: set[str], outputs: set[str]) -> ModelMetadata:
    return ModelMetadata(
        "m", tuple(TensorMetadata(n, "BYTES", (1,)) for n in inputs), tuple(TensorMetadata(n, "", ()) for n in outputs)
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "task"),
    [
        ({"text_input", "top_k"}, {"label", "score"}, Task.TEXT_CLASSIFICATION),
        ({"text_input", "candidate_labels"}, {"label", "score"}, Task.ZERO_SHOT_CLASSIFICATION),
        ({"text_input"}, {"entities"}, Task.TOKEN_CLASSIFICATION),
        ({"text_input"}, {"embedding", "truncated_tokens"}, Task.FEATURE_EXTRACTION),
        ({"question", "context"}, {"answer", "score", "start", "end"}, Task.QUESTION_ANSWERING),
    ],
)
def test_the_task_is_told_by_the_tensors(inputs: set[str], outputs: set[str], task: Task) -> None:
    assert task_of(model(inputs, outputs)) is task


def test_a_model_for_no_task_is_refused() -> None:
    with pytest.raises(RequestRefused, match="input_ids"):
        task_of(model({"input_ids"}, {"logits"}))
