"""Where keys and values lie: the caches on the host and on a device, and what a lane's steps read and change.

The others are in the files beside: kv_cache_cross.py (of encoded sources), and for OpenVINO kv_cache_paged.py (in
blocks) and kv_cache_grown.py. None knows which rows are in use, or why one is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .memory import Arrays, Bindables, Binding, DeviceArray, Reserved
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


class KvCache:
    """[parts, rows, heads, capacity, head_dim] on the host: keys of layer i are part 2 * i, values 2 * i + 1.

    Capacity is in positions. Memory is real where it was written only. Nothing is cleared: what lies beyond a row's
    length is garbage and never read.
    """

    def __init__(self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> None:
        self._memory = Reserved((2 * layers, rows, heads, capacity, head_dim), dtype)
        self.array = self._memory.array
        self.parts, self.rows = 2 * layers, rows

    def part(self, part: int, first: int, count: int) -> NDArray[np.generic]:
        """Keys or values of `count` rows: a view [count, heads, capacity, head_dim], contiguous."""
        return self.array[part, first : first + count]

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length` of row `source` to row `target`."""
        # One part a time: the memory of two rows of a part is visibly apart, so that numpy makes no copy in between.
        for part in self.array:
            part[target, :, :length] = part[source, :, :length]

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""
        self.array[part, row, :, : len(values)] = values.transpose(1, 0, 2)

    def give_back(self, first: int) -> None:
        """Give the rows' pages back to the operating system."""
        row = self.array[0, 0].size
        for part in range(self.parts):
            self._memory.give_back((part * self.rows + first) * row, (part + 1) * self.rows * row)


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
    """As KvCache, in the memory of `device`: allocated by ONNX Runtime, and copied by a graph, a row at a time."""

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


Cache = Union[KvCache, DeviceCache]
# From layers, rows, heads, capacity, head_dim and dtype: KvCache for the host, DeviceCaches for a device.
CacheMaker = Callable[[int, int, int, int, int, DTypeLike], Cache]


class LaneMemory:
    """`rows` rows; `cache` has as many or more.

    A row's length is the number of filled positions, which is also the position of its next input.
    """

    def __init__(self, rows: int, cache: Cache) -> None:
        self.cache = cache
        self.ids = np.zeros((rows, 1), np.int64)
        self.positions = np.zeros((rows, 1), np.int64)
        self.lengths = np.zeros(rows, np.int32)
        self.total = np.zeros((), np.int32)

    def inputs(self, rows: int) -> Arrays:
        """The inputs of a run of the first `rows` rows, by name, the cache excepted."""
        return {
            "input_ids": self.ids[:rows],
            "position_ids": self.positions[:rows],
            # The operator wants the total length minus one: what is filled, and the one token of this run, minus one.
            "seqlens_k": self.lengths[:rows],
            "total_length": self.total,
        }

    def prepare(self, rows: int) -> None:
        """Before a run of the first `rows` rows."""
        self.total[...] = self.lengths[:rows].max() + 1

    def advance(self, rows: int) -> None:
        """After it."""
        self.lengths[:rows] += 1
        self.positions[:rows] += 1

    def start(self, row: int, length: int) -> None:
        """Say that `row` has `length` positions filled."""
        self.lengths[row] = self.positions[row, 0] = length

    def move(self, source: int, target: int) -> None:
        """Make row `target` hold what row `source` does."""
        self.cache.copy(source, target, int(self.lengths[source]))
        for array in (self.ids, self.positions, self.lengths):
            array[target] = array[source]

    def follow(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(source, target) rows of one length; no source is a target."""
        for source, target in pairs:
            self.cache.copy(source, target, int(self.lengths[source]))

    def feed(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(row, token): set next inputs."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows), 0] = tokens


def bind_cache(cache: Cache, first: int, rows: int, prefixes: tuple[str, str]) -> tuple[Bindables, Bindables]:
    """A graph's inputs and outputs for the caches of `rows` rows, by name: it writes where it read."""
    parts = {f"{'kv'[part % 2]}_{part // 2}": cache.part(part, first, rows) for part in range(cache.parts)}
    past, present = ({prefix + name: memory for name, memory in parts.items()} for prefix in prefixes)
    return past, present
