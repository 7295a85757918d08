"""Bodies of infer requests are passed on as binary tensors of the same values, or refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from hfx.client.tensors import DATA_TYPES, from_bytes
from hfx.front.infer_request import binary_request
from hfx.front.refusals import Refusal

WRAPS = 1 << 62  # times 4 bytes is 0 in 64 bits


def tensor(datatype: str = "INT32", shape: Any = (1, 2), data: Any = (1, 2), **fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, "data": data, **fields}


def sent(body: bytes, head_length: int | None = None) -> tuple[dict[str, Any], bytes]:
    """Return the JSON and the binary content that are passed on."""
    content, length = binary_request(body, head_length)
    return json.loads(content[:length]), content[length:]


def refusal(*tensors: Any, **fields: Any) -> str:
    with pytest.raises(Refusal) as caught:
        binary_request(json.dumps({"inputs": list(tensors), **fields}).encode(), None)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize("datatype", [name for name in DATA_TYPES if name != "FP16"])
def test_values_of_every_datatype_are_sent_as_the_bytes_of_their_type(datatype: str) -> None:
    bounds = np.iinfo(DATA_TYPES[datatype].name) if "INT" in datatype else None
    values = [True, False] if datatype == "BOOL" else [bounds.min, bounds.max] if bounds else [-1.5, 3]
    head, content = sent(json.dumps({"inputs": [tensor(datatype, [1, 2], values)]}).encode())
    [described] = head["inputs"]
    assert described == {
        "name": "x", "datatype": datatype, "shape": [1, 2], "parameters": {"binary_data_size": len(content)}
    }  # fmt: skip
    assert from_bytes("x", datatype, [1, 2], content).tolist() == [values]


def test_strings_are_sent_as_utf8_with_their_lengths_in_order_of_rows() -> None:
    _, content = sent(json.dumps({"inputs": [tensor("BYTES", [2, 2], [["a", "ü\0"], ["", "😀"]])]}).encode())
    assert from_bytes("x", "BYTES", [4], content).tolist() == [b"a", "ü\0".encode(), b"", "😀".encode()]


def test_only_fields_that_triton_reads_are_passed_on() -> None:
    request = {
        "id": "7", "parameters": {"priority": 1, "custom": "x", "flag": True}, "inputs": [tensor(note=1)],
        "outputs": [{"name": "y", "parameters": {"binary_data": False, "other": 1}, "z": 1}],
        "model_name": "z",
    }  # fmt: skip
    head, _ = sent(json.dumps(request).encode())
    assert head.pop("inputs")
    assert head == {
        "id": "7", "parameters": request["parameters"],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["classification", "classification\0x"])
@pytest.mark.parametrize("value", [1, 0, "1", None])
def test_the_classes_of_an_output_are_refused_as_they_end_triton(name: str, value: Any) -> None:
    message = refusal(tensor(), outputs=[{"name": "label", "parameters": {name: value}}])
    assert message.startswith("The output 'label' has")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", -1), ("priority", "1"), ("timeout", 1.5), ("timeout", True), ("sequence_id", True),
        ("sequence_start", 1), ("sequence_end", "x"), ("binary_data_output", 1), ("priority\0x", -1),
        ("triton_enable_empty_final_response", 1), ("triton_other", 1),
    ],
)  # fmt: skip
def test_parameters_of_triton_have_its_types(name: str, value: Any) -> None:
    assert name.partition("\0")[0] in refusal(tensor(), parameters={name: value})


def test_tritons_own_parameters_are_passed_on() -> None:
    parameters = {
        "priority": 1, "timeout": 5_000_000, "sequence_id": "a", "sequence_start": True, "sequence_end": False,
        "binary_data_output": True, "triton_enable_empty_final_response": False,
    }  # fmt: skip
    head, _ = sent(json.dumps({"inputs": [tensor()], "parameters": parameters}).encode())
    assert head["parameters"] == parameters


def test_binary_and_json_tensors_of_one_request_keep_their_own_contents() -> None:
    binary = {"name": "b", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}
    head = json.dumps({"inputs": [binary, tensor(), {**binary, "name": "c"}]}).encode()
    described, content = sent(head + b"bbcc", len(head))
    assert [each["name"] for each in described["inputs"]] == ["b", "x", "c"]
    assert content == b"bb" + struct.pack("<ii", 1, 2) + b"cc"


def test_a_raw_tensor_without_json_stays_as_it_is() -> None:
    assert binary_request(b"[1, 2", 0) == (b"[1, 2", 0)


@pytest.mark.parametrize(
    "shape",
    [
        [1, WRAPS], [1, 2**61], [1, 2**63], [1, 2**64], [WRAPS, 4], [2**32, 2**32], [1, 2**28], [0, 2**62],
        [1, -1], [-1, -1], [-1, -2], [1] * 9, [1, 1], [1.0, 2], [True, 2], ["1", 2], [[1], 2], [], None, 2, {}, "12",
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_its_values_is_refused_and_names_the_input(shape: Any) -> None:
    assert "'x'" in refusal(tensor(shape=shape))
    assert "'x'" in refusal(tensor("BYTES", shape, ["a", "b"]))


def test_the_shape_that_counts_is_the_one_that_is_sent_however_its_name_is_written() -> None:
    good = json.dumps({"inputs": [tensor()]})
    escaped = good.replace('"shape"', '"\\u0073hape"')
    assert sent(escaped.encode())[0]["inputs"][0]["shape"] == [1, 2]
    with pytest.raises(Refusal):
        binary_request(escaped.replace("[1, 2], ", f"[1, {WRAPS}], ", 1).encode(), None)
    with pytest.raises(Refusal):
        binary_request(good.replace('"shape"', f'"shape": [1, 2], "shape": [1, {WRAPS}], "other"').encode(), None)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT32", [1, 2.0]), ("INT32", [1, True]), ("INT32", [1, "2"]), ("INT32", [1, None]), ("INT32", [1, 2**31]),
        ("UINT8", [0, -1]), ("INT64", [0, 2**63]), ("BOOL", [0, 1]), ("FP32", ["1", "2"]), ("FP64", [1, 10**400]),
        ("BYTES", [1, 2]), ("BYTES", ["a", None]), ("BYTES", ["a", "\ud800"]), ("FP16", [1, 2]), ("BF16", [1, 2]),
        ("INT32", None), ("INT32", {"a": 1}), ("INT32", 3), ("INT32", "12"), ("INT32", []), ("INT32", [[1], [{}]]),
        ("INT4", [1, 2]), (None, [1, 2]), (["INT32"], [1, 2]), ({}, [1, 2]),
    ],
)  # fmt: skip
def test_values_that_are_not_of_their_datatype_are_refused(datatype: Any, data: Any) -> None:
    assert "'x'" in refusal(tensor(datatype, data=data))


@pytest.mark.parametrize("size", [0, 4, 7, 9, 2**31, 2**62, 2**64, -8, True, "8", None, 8.0])
def test_a_size_that_does_not_fit_shape_and_body_is_refused(size: Any) -> None:
    head = json.dumps({"inputs": [{**tensor(), "parameters": {"binary_data_size": size}}]}).encode()
    with pytest.raises(Refusal):
        binary_request(head + bytes(8), len(head))


def test_strings_need_their_lengths_and_bytes_of_no_tensor_are_refused() -> None:
    for shape, content in (([1, WRAPS], bytes(8)), ([1, 3], bytes(8)), ([1, 2], bytes(9))):
        binary = {"name": "b", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": 8}}
        head = json.dumps({"inputs": [binary]}).encode()
        with pytest.raises(Refusal):
            binary_request(head + content, len(head))
    assert "binary_data_size" in refusal({**tensor(), "parameters": {"binary_data_size": 8}})


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 1}, {"parameters": []}, {"parameters": {"a": None}}, {"parameters": {"a": [1]}},
        {"parameters": {"a": 2**63}}, {"parameters": {"a": float("inf")}}, {"outputs": {}}, {"outputs": [1]},
        {"outputs": [{}]}, {"outputs": [{"name": "y", "parameters": {"classification": 2**62}}]},
        {"outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
        {"inputs": {}}, {"inputs": [1]}, {"inputs": [{**tensor(), "name": "a\0b"}]},
        {"inputs": [{**tensor(), "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
        {"inputs": [{**tensor(), "parameters": 1}]},
    ],
)  # fmt: skip
def test_fields_of_the_wrong_type_or_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        binary_request(json.dumps({"inputs": [tensor()], **fields}).encode(), None)


@pytest.mark.parametrize("shape", [[0], [0, 1], [0, 2**31 - 1]])
def test_a_request_without_rows_is_refused(shape: list[int]) -> None:
    empty = tensor("BYTES", shape, [])
    assert "no rows" in refusal(empty, {**empty, "name": "y"})
    assert sent(json.dumps({"inputs": [empty, tensor()]}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"3",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"inputs": ',
        b'{"id": 1e999}',
        '{"inputs": []}'.encode("utf-16"),
    ],
)
def test_a_body_that_is_not_an_infer_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal):
        binary_request(body, None)
