"""Keys and values in the memory of a device: allocated by ONNX Runtime, copied by a graph, never on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .memory import Binding, DeviceArray
from .sessions import SessionSettings, open_graph

SOURCE, TARGET = "source", "target"
# What onnx.helper (which is not there where models are served) writes for one Identity from SOURCE to TARGET, both
# [d0, d1, d2, d3], in opset 17 and IR 10; %c is the element type.
_TENSOR = b"\x12\x1e\n\x1c\x08%c\x12\x18\n\x04\x12\x02d0\n\x04\x12\x02d1\n\x04\x12\x02d2\n\x04\x12\x02d3"
_COPY_GRAPH = (
    b'\x08\n:v\n\x1a\n\x06source\x12\x06target"\x08Identity\x12\x04copy'
    b"Z(\n\x06source" + _TENSOR + b"b(\n\x06target" + _TENSOR + b"B\x02\x10\x11"
)
_ELEMENT_TYPES = {"float32": 1, "int8": 3, "float16": 10}  # TensorProto.DataType


def copy_graph(dtype: DTypeLike) -> bytes:
    """A serialized ONNX model that copies a tensor of four dimensions within a device."""
    element = _ELEMENT_TYPES[np.dtype(dtype).name]
    return _COPY_GRAPH % (element, element)


@dataclass(frozen=True)
class DeviceCaches:
    """Makes caches on `device` ("cuda"), with one session for their copies each."""

    settings: SessionSettings
    device: str

    def __call__(
        self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike
    ) -> DeviceCache:
        """A cache whose memory is all taken at once."""
        session = open_graph(copy_graph(dtype), self.settings)
        return DeviceCache(session, (2 * layers, rows, heads, capacity, head_dim), np.dtype(dtype), self.device)


class DeviceCache:
    """A `Cache` of [parts, rows, heads, capacity, head_dim] on `device`. Rows are copied whole."""

    def __init__(self, session: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> None:
        from onnxruntime import OrtValue

        self.parts, self.rows, *self._row = shape
        self._session = session
        self._dtype = dtype
        self._device = device
        self._memory = OrtValue.ortvalue_from_shape_and_type(list(shape), dtype.type, device, 0)
        self._row_bytes = math.prod(self._row) * dtype.itemsize
        # A row on the host, for values that come from there.
        self._upload = np.zeros((1, *self._row), dtype)

    def part(self, part: int, first: int, count: int) -> DeviceArray:
        """The rows' address."""
        address = self._memory.data_ptr() + (part * self.rows + first) * self._row_bytes
        return DeviceArray(self._device, address, (count, *self._row), self._dtype, self._memory)

    def copy(self, source: int, target: int, length: int) -> None:
        """The whole row."""
        for part in range(self.parts):
            Binding(self._session, {SOURCE: self.part(part, source, 1)}, {TARGET: self.part(part, target, 1)}).run()

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """By way of a row on the host."""
        self._upload[0, :, : len(values)] = values.transpose(1, 0, 2)
        Binding(self._session, {SOURCE: self._upload}, {TARGET: self.part(part, row, 1)}).run()

    def give_back(self, first: int) -> None:
        """Nothing: what a device lends is kept."""
