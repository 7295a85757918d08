"""Plain values as numpy arrays, and arrays as the bytes that both of Triton's protocols carry.

Strings are BYTES tensors: little-endian length, then UTF-8. Source: the KServe v2 protocol with Triton's binary tensor
data extension.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hfx.errors import ServerError
from hfx.metadata import check_text

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


def to_tensors(values: Mapping[str, Sequence[Any]], datatypes: Mapping[str, str]) -> dict[str, Array]:
    """Tensors of shape [1, number of values] in the `datatypes` of the model's inputs."""
    return {name: _tensor(name, list(items), datatypes[name]) for name, items in values.items()}


def datatype_of(array: Array) -> str:
    """Triton's name for the type of `array`; arrays of objects hold `bytes`."""
    return BYTES if array.dtype == np.object_ else _NAMES[array.dtype]


def to_bytes(array: Array) -> bytes:
    """The content of `array` as it travels."""
    if array.dtype != np.object_:
        return np.ascontiguousarray(array).tobytes()
    return b"".join(struct.pack("<I", len(item)) + item for item in array.ravel())


def from_bytes(name: str, datatype: str, shape: Sequence[int], content: bytes) -> Array:
    """The tensor `name` from its bytes; BYTES become objects of `bytes`. Raises ServerError if it is damaged."""
    try:
        if datatype == BYTES:
            return _strings(content).reshape(tuple(shape))
        return np.frombuffer(content, DATA_TYPES[datatype]).reshape(tuple(shape))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ServerError(f"The server's tensor {name!r} is damaged: {error}.") from error


def from_list(name: str, datatype: str, shape: Sequence[int], items: Sequence[Any]) -> Array:
    """The tensor `name` from the values of a JSON answer. Raises ServerError if they are not of its type and shape."""
    try:
        if datatype == BYTES:
            return _objects([item.encode() for item in items]).reshape(tuple(shape))
        return np.array(items, DATA_TYPES[datatype]).reshape(tuple(shape))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError(f"The server's tensor {name!r} is damaged: {error}.") from error


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
