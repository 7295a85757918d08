"""Tensors to and from the bytes of Triton's gRPC messages, in one place.

numpy arrays go in and come out; strings travel as BYTES tensors (little-endian length, then UTF-8). This file must
not know models, tasks or connections. Source: the KServe v2 protocol with Triton's binary tensor data extension.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from hfx.errors import ServerError

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = Mapping[str, Array]

BYTES = "BYTES"
DATA_TYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in DATA_TYPES.items()}


def encode_request(model: str, inputs: Tensors) -> Any:
    """A ModelInferRequest for MODEL; arrays of objects hold `bytes` and become BYTES tensors."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        tensor = request.inputs.add(name=name, shape=array.shape)
        tensor.datatype = BYTES if array.dtype == np.object_ else _NAMES[array.dtype]
        request.raw_input_contents.append(_to_bytes(array))
    return request


def decode_response(response: Any) -> dict[str, Array]:
    """The output tensors of a ModelInferResponse by name; BYTES tensors become arrays of `bytes` objects."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise ServerError("The server sent an answer without its tensors.", "Is the address that of a Triton server?")
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {tensor.name: _from_bytes(tensor, content) for tensor, content in contents}


def _to_bytes(array: Array) -> bytes:
    if array.dtype != np.object_:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.ravel())


def _from_bytes(tensor: Any, content: bytes) -> Array:
    shape = tuple(tensor.shape)
    try:
        if tensor.datatype == BYTES:
            return _strings(content).reshape(shape)
        return np.frombuffer(content, DATA_TYPES[tensor.datatype]).reshape(shape)
    except (ValueError, KeyError, struct.error) as error:
        raise ServerError(f"The server's tensor {tensor.name!r} is damaged: {error}.") from error


def _strings(content: bytes) -> Array:
    items, position = [], 0
    while position < len(content):
        (length,) = struct.unpack_from("<I", content, position)
        position += 4 + length
        if position > len(content):
            raise ValueError("a string is cut off")
        items.append(content[position - length : position])
    strings = np.empty(len(items), np.object_)
    strings[:] = items
    return strings
