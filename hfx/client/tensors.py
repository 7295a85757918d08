"""Convert plain values to numpy arrays, arrays to bytes (gRPC and HTTP), and encode and decode HTTP bodies.

A string in a BYTES tensor is its length (uint32, little-endian) followed by its UTF-8. Over HTTP, plain calls use
binary tensors, and streams use JSON. Source: the KServe v2 protocol with Triton's binary tensor data extension, and its
generate extension.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hfx.client.errors import MALFORMED
from hfx.errors import ServerError
from hfx.metadata import ModelMetadata, TensorMetadata, Values, check_text

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = Mapping[str, Array]

HEADER_LENGTH = "inference-header-content-length"
EVENT = "data:"
BINARY = "application/octet-stream"
JSON = "application/json"
BYTES = "BYTES"
DATA_TYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
_NAMES = {dtype: name for name, dtype in DATA_TYPES.items()}


def to_tensors(values: Mapping[str, Sequence[Any]], datatypes: Mapping[str, str]) -> dict[str, Array]:
    """Return tensors of shape [1, number of values] with the `datatypes` of the model's inputs."""
    return {name: _tensor(name, list(items), datatypes[name]) for name, items in values.items()}


def datatype_of(array: Array) -> str:
    """Return Triton's name for the type of `array`. An array of objects holds `bytes`."""
    return BYTES if array.dtype == np.object_ else _NAMES[array.dtype]


def to_bytes(array: Array) -> bytes:
    """Return the content of `array` as both protocols send it."""
    if array.dtype != np.object_:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.ravel())


def from_bytes(name: str, datatype: str, shape: Sequence[int], content: bytes) -> Array:
    """Return the tensor `name` from its bytes; strings become `bytes` objects. Raises ServerError if it is damaged."""
    try:
        if datatype == BYTES:
            return _strings(content).reshape(tuple(shape))
        return np.frombuffer(content, DATA_TYPES[datatype]).reshape(tuple(shape))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ServerError(f"The server's tensor {name!r} is damaged: {error}.") from error


def from_list(name: str, datatype: str, shape: Sequence[int], items: Sequence[Any]) -> Array:
    """Return the tensor `name` from the values of a JSON answer. Raises ServerError if their type or shape is wrong."""
    try:
        if datatype == BYTES:
            return _objects([item.encode() for item in items]).reshape(tuple(shape))
        return np.array(items, DATA_TYPES[datatype]).reshape(tuple(shape))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError(f"The server's tensor {name!r} is damaged: {error}.") from error


def encode_infer(
    request_id: str, inputs: Tensors, parameters: Mapping[str, Any] | None = None
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of POST /v2/models/NAME/infer."""
    contents = [to_bytes(array) for array in inputs.values()]
    head = json.dumps(
        {
            "id": request_id,
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype_of(array),
                    "shape": array.shape,
                    "parameters": {"binary_data_size": len(content)},
                }
                for (name, array), content in zip(inputs.items(), contents, strict=True)
            ],
            "parameters": {"binary_data_output": True, **(parameters or {})},
        }
    ).encode()
    return b"".join((head, *contents)), {"content-type": BINARY, HEADER_LENGTH: str(len(head))}


def decode_infer(body: bytes, headers: Mapping[str, str], field: str = "outputs") -> dict[str, Array]:
    """Return the output tensors by name, or with `field` "inputs" the input tensors of a request.

    Raises ServerError for a malformed body.
    """
    tensors = {}
    with _parsing():
        position = end = int(headers.get(HEADER_LENGTH, len(body)))
        for output in json.loads(body[:end])[field]:
            name, datatype, shape = output["name"], output["datatype"], output["shape"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                tensors[name] = from_list(name, datatype, shape, _flat(output["data"]))
            else:
                content, position = body[position : position + size], position + size
                tensors[name] = from_bytes(name, datatype, shape, content)
    return tensors


def encode_generate(request_id: str, values: Values) -> bytes:
    """Return the body of POST /v2/models/NAME/generate and generate_stream.

    An input with a single value is sent as this value, any other input as a list.
    """
    fields = {name: items[0] if len(items) == 1 else items for name, items in values.items()}
    return json.dumps({"id": request_id, **fields}).encode()


def plain_values(array: Array) -> list[Any]:
    """Return the values of a tensor, decoding `bytes` to text."""
    return [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]


def decode_event(line: str, outputs: Sequence[TensorMetadata]) -> dict[str, Array] | str | None:
    """Return the tensors in one line of a stream, the text of an error, or None for a line without an event."""
    if not line.startswith(EVENT):
        return None
    with _parsing():
        fields = json.loads(line.removeprefix(EVENT))
        if "error" in fields:
            return str(fields["error"])
        return {tensor.name: _from_event(tensor, fields[tensor.name]) for tensor in outputs if tensor.name in fields}


def decode_metadata(name: str, body: bytes) -> ModelMetadata:
    """Decode the inputs and outputs of a model."""
    with _parsing():
        description = json.loads(body)
        return ModelMetadata(name, _metadata_of(description["inputs"]), _metadata_of(description["outputs"]))


def decode_parameter(body: bytes, name: str) -> str:
    """Return the parameter `name` of a model's configuration; empty if it is not there."""
    with _parsing():
        return str(json.loads(body).get("parameters", {}).get(name, {}).get("string_value", ""))


def decode_statistics(body: bytes) -> list[str]:
    """Return the names of the ready models from the statistics, as the index of the repository may be closed."""
    with _parsing():
        return [str(model["name"]) for model in json.loads(body)["model_stats"]]


def error_text(body: bytes) -> str:
    """Return the text of a failure: the `error` of Triton or of another API, or the beginning of the body."""
    try:
        error = json.loads(body.removeprefix(EVENT.encode()))["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except MALFORMED:
        return f"an answer that is not Triton's: {body[:100].decode('utf-8', 'replace')!r}"


def _tensor(name: str, items: list[Any], datatype: str) -> Array:
    if datatype == BYTES:
        return _objects([check_text(item, name).encode() for item in items])[None]
    return np.array([items], DATA_TYPES[datatype])


def _strings(content: bytes) -> Array:
    items, position = [], 0
    while position < len(content):
        (length,) = struct.unpack_from("<I", content, position)
        position += 4 + length
        if position > len(content):
            raise ValueError("a string is cut off")
        items.append(content[position - length : position])
    return _objects(items)


def _objects(items: list[bytes]) -> Array:
    strings = np.empty(len(items), np.object_)
    strings[:] = items
    return strings


def _from_event(tensor: TensorMetadata, value: Any) -> Array:
    items = value if isinstance(value, list) else [value]
    return from_list(tensor.name, tensor.datatype, (1, len(items)), items)


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [item for each in data for item in _flat(each)]


def _metadata_of(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(str(tensor["name"]), str(tensor["datatype"]), tuple(int(size) for size in tensor["shape"]))
        for tensor in tensors
    )


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except MALFORMED as error:
        raise ServerError(
            f"The server's answer can't be read ({error!r}).", "Is the address that of a Triton server's HTTP port?"
        ) from error
