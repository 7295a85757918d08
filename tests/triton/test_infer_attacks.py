"""Tensors that would end tritonserver are refused by every kind of model over both protocols."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grpc import insecure_channel
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.rigs.clients.dialect_calls import PROMPT, RANKER, call
from tests.rigs.servers.generation_server import RECITAL
from tests.rigs.servers.serve_process import ServeProcess

pytestmark = pytest.mark.triton

WRAPS = 1 << 62  # times the 4 bytes of an INT32 is 0 in 64 bits
SHAPES = (
    [1, WRAPS],
    [1, 2**61],
    [WRAPS, 4],
    [2**32, 2**32],
    [1, 2**28],
    [1, -1],
    [-1, -1],
    [0, 2**62],
    [1] * 9,
    [2, 0],
)
# A model, and a numeric input of it.
INPUTS = (
    ("sentiment-fp32", "top_k"),
    ("answers-fp32_tokenize", "question"),
    ("answers-fp32_net", "input_ids"),
    ("nli-fp32", "top_k"),
    ("entities-fp32_net", "attention_mask"),
    ("answers-fp32_postprocess", "start_logits"),
    ("similar-int8", "text_input"),
    (RANKER, "raw_scores"),
    (RECITAL, "max_tokens"),
    (f"{RECITAL}_stream", "seed"),
)
TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a lovely garden"]}


def attacked(name: str, shape: list[int]) -> list[tuple[bytes, dict[str, str]]]:
    """Return bodies with an INT32 input whose shape does not fit its values, and their headers."""
    tensor = {"name": name, "datatype": "INT32", "shape": shape}
    binary = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 4}}]}).encode()
    empty = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 0}}]}).encode()
    plain = json.dumps({"inputs": [TEXT, {**tensor, "data": [1]}]}).encode()
    return [
        (plain, {}),
        (plain.replace(b'"shape"', b'"\\u0073hape"'), {}),
        (json.dumps({"inputs": [TEXT, {**tensor, "data": [1] * 20_000}]}).encode(), {}),
        (binary + bytes(4), {"Inference-Header-Content-Length": str(len(binary))}),
        (empty, {"Inference-Header-Content-Length": str(len(empty))}),
    ]


def served_still(dialects: ServeProcess, server: int) -> None:
    assert dialects.server == server
    assert call(dialects, "/v2/models/sentiment-fp32/infer", {"inputs": [TEXT]})[0] == 200


@pytest.mark.parametrize(("model", "name"), INPUTS)
def test_a_shape_beyond_its_values_is_refused_over_http(dialects: ServeProcess, model: str, name: str) -> None:
    server = dialects.server
    for shape in SHAPES:
        for body, headers in attacked(name, shape):
            status, _, answer = call(dialects, f"/v2/models/{model}/infer", body, headers=headers)
            assert status in (400, 404, 501), (shape, answer)
    served_still(dialects, server)


@pytest.mark.parametrize(("model", "name"), INPUTS)
def test_a_shape_beyond_its_values_is_refused_over_grpc(dialects: ServeProcess, model: str, name: str) -> None:
    server = dialects.server
    with insecure_channel(dialects.ready["grpc_url"].removeprefix("grpc://")) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for shape in SHAPES:
            if any(size >= 2**63 for size in shape):
                continue
            for content in (bytes(4), b"", bytes(80_000)):
                raw = service_pb2.ModelInferRequest(model_name=model)
                raw.inputs.add(name=name, datatype="INT32", shape=shape)
                raw.raw_input_contents.append(content)
                typed = service_pb2.ModelInferRequest(model_name=model)
                typed.inputs.add(name=name, datatype="INT32", shape=shape).contents.int_contents[:] = [1]
                for request in (raw, typed):
                    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|UNIMPLEMENTED|NOT_FOUND|UNAVAILABLE"):
                        stub.ModelInfer(request, timeout=60)
    served_still(dialects, server)


@pytest.mark.parametrize(
    ("model", "output"), [("sentiment-fp32", "label"), ("sentiment-fp32", "score"), (RECITAL, "text_output")]
)
@pytest.mark.parametrize("path", ["/v2/models/{}/infer", "/v2/models/{}/versions/1/infer"])
def test_the_classification_extension_is_refused_over_http(
    dialects: ServeProcess, model: str, output: str, path: str
) -> None:
    server = dialects.server
    for name in (model, model.replace("e", "%65")):
        for classes in ({"classification": 1}, {"classification": 0}, {"classification": 2**40}):
            request = {"inputs": [TEXT], "outputs": [{"name": output, "parameters": classes}]}
            plain = json.dumps(request).encode()
            binary = {**TEXT, "data": None, "parameters": {"binary_data_size": 7}}
            head = json.dumps({**request, "inputs": [binary]}).encode()
            for body, headers in (
                (plain, {}),
                (plain.replace(b"classification", b"\\u0063lassification"), {}),
                (head + b"\x03\0\0\0abc", {"Inference-Header-Content-Length": str(len(head))}),
            ):
                status, _, answer = call(dialects, path.format(name), body, headers=headers)
                assert (status, "classification, which is closed" in answer["error"]) == (400, True)
    served_still(dialects, server)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([{**TEXT, "shape": [1, 1, 1]}], [], "The input 'text_input' has the shape [1,1,1]. Send the shape [n, 1]."),
        ([{**TEXT, "shape": [1, 2], "data": ["a", "b"]}], [], "Send the shape [n, 1]."),
        ([{**TEXT, "name": "text"}], [], "has no input 'text'. Its inputs are text_input (BYTES), top_k (INT32),"),
        (
            [TEXT],
            [{"name": "labels"}],
            "has no output 'labels'. Its outputs are label (BYTES), score (FP32), ",
        ),
        ([], [], "missing required input(s) ['text_input']"),
        ([{**TEXT, "datatype": "INT32", "data": [1]}], [], "expects 'BYTES'"),
    ],
)
def test_the_refusal_of_an_invalid_tensor_says_what_to_send(
    dialects: ServeProcess, inputs: list[Any], outputs: list[Any], words: str
) -> None:
    request = {"inputs": inputs, "outputs": outputs} if outputs else {"inputs": inputs}
    status, _, answer = call(dialects, "/v2/models/sentiment-fp32/infer", request)
    assert (status, words in answer["error"]) == (400, True), answer
    assert "max_batch_size" not in answer["error"] and "request id" not in answer["error"]


@pytest.mark.parametrize("name", ["stop_words", "stop"])
def test_a_request_without_rows_is_answered(dialects: ServeProcess, name: str) -> None:
    empty = {"name": name, "datatype": "BYTES", "shape": [0, 0], "data": []}
    status, _, answer = call(dialects, f"/v2/models/{RECITAL}/infer", {"inputs": [empty]})
    assert (status, "no rows" in answer["error"]) == (400, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": [1] * 100_000}, {"max_tokens": [[1], [2]]}, {"max_tokens": []}, {"max_tokens": 1.5},
        {"max_tokens": -(2**63)}, {"max_tokens": 2**200}, {"seed": "1"}, {"text_input": 5},
        {"text_input": ["a"] * 1000},        {"text_input": {"a": 1}}, {"id": {"a": 1}},
        {"parameters": {"max_tokens": [1]}}, {"parameters": 3},
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_refused_by_the_generate_extension(
    dialects: ServeProcess, fields: dict[str, Any]
) -> None:
    server = dialects.server
    for path in (f"{RECITAL}/generate", f"{RECITAL}_stream/generate"):
        status, _, _ = call(dialects, f"/v2/models/{path}", {"text_input": PROMPT, "max_tokens": 1, **fields})
        assert status == 400 or "parameters" in fields
    served_still(dialects, server)


def test_an_answer_has_the_id_and_outputs_of_its_request(dialects: ServeProcess) -> None:
    def answer(**fields: Any) -> Any:
        return call(dialects, "/v2/models/sentiment-fp32/infer", {"id": "a", "inputs": [TEXT], **fields})[2]

    label = answer(outputs=[{"name": "label"}])["outputs"]
    assert [output["name"] for output in label] == ["label"]
    assert isinstance(label[0]["data"], list)
    assert answer()["id"] == "a"
    assert {output["name"] for output in answer()["outputs"]} >= {"label", "score"}
