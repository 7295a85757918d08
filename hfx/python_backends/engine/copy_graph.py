"""An ONNX graph that copies a tensor, as bytes: how memory of a device is copied without any library of that device.

Owns the few protobuf fields that such a graph has (the ONNX project's onnx.proto3); where models are served there is no
onnx package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

SOURCE, TARGET = "source", "target"
IR_VERSION, OPSET = 10, 17
# TensorProto.DataType
ELEMENT_TYPES = {"float32": 1, "int8": 3, "float16": 10}


def copy_graph(dtype: DTypeLike, rank: int) -> bytes:
    """A serialized ModelProto with one Identity from SOURCE to TARGET, of `rank` free dimensions."""
    element = ELEMENT_TYPES[np.dtype(dtype).name]
    node = _text(1, SOURCE) + _text(2, TARGET) + _text(4, "Identity")
    graph = _bytes(1, node) + _text(2, "copy")
    graph += _bytes(11, _tensor(SOURCE, element, rank)) + _bytes(12, _tensor(TARGET, element, rank))
    return _number(1, IR_VERSION) + _bytes(7, graph) + _bytes(8, _number(2, OPSET))


def _tensor(name: str, element: int, rank: int) -> bytes:
    """A ValueInfoProto; dimensions are named alike in source and target."""
    shape = b"".join(_bytes(1, _text(2, f"d{axis}")) for axis in range(rank))
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, element) + _bytes(2, shape)))


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
