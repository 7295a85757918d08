"""Where keys and values lie: on the host or on a device, of rows, prefixes and encoded sources.

None knows which rows are in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..checks import Ids
from .prefix_cache import BLOCK
from .sessions import Bindable, Bindables, Binding, DeviceArray, Reserved, SessionSettings, open_session
from .spec import EngineSpec

Pairs = Sequence[tuple[int, int]]
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

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._memory = Reserved(shape, dtype)
        self.array = self._memory.array
        self.parts, self.rows, _, self.width, _ = shape

    def part(self, part: int, first: int, count: int) -> NDArray[np.generic]:
        """Keys or values of `count` rows: a view [count, heads, capacity, head_dim], contiguous."""
        return self.array[part, first : first + count]

    def positions(self, row: int, first: int, end: int) -> NDArray[Any]:
        """Keys and values of a row's positions: a view [parts, heads, positions, head_dim]."""
        return self.array[:, row, :, first:end]

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length` of row `source` to row `target`."""
        # One part a time: the memory of two rows of a part is visibly apart, so that numpy makes no copy in between.
        for part in self.array:
            part[target, :, :length] = part[source, :, :length]

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""
        self.array[part, row, :, : len(values)] = values.transpose(1, 0, 2)

    def release(self, first: int) -> None:
        """Give the rows' pages back to the operating system."""
        row = self.array[0, 0].size
        for part in range(self.parts):
            self._memory.release((part * self.rows + first) * row, (part + 1) * self.rows * row)


def copy_graph(dtype: DTypeLike) -> bytes:
    """A serialized ONNX model that copies a tensor of four dimensions within a device."""
    element = _ELEMENT_TYPES[np.dtype(dtype).name]
    return _COPY_GRAPH % (element, element)


class DeviceCache:
    """As KvCache, in the memory of `device` ("cuda"): allocated by ONNX Runtime, all at once.

    Rows are copied one at a time by a graph, in a session with `settings`.
    """

    def __init__(self, settings: SessionSettings, device: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        from onnxruntime import OrtValue

        self.parts, self.rows, *self._row = shape
        self.width = shape[3]
        self._settings = settings
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._device, self._device_id = device, settings.device_id
        self._memory = OrtValue.ortvalue_from_shape_and_type(list(shape), self._dtype.type, device, settings.device_id)
        self._row_bytes = math.prod(self._row) * self._dtype.itemsize

    @cached_property
    def _session(self) -> Any:
        return open_session(copy_graph(self._dtype), self._settings)

    @cached_property
    def _upload(self) -> NDArray[Any]:
        """A row on the host, for values that come from there."""
        return np.zeros((1, *self._row), self._dtype)

    def part(self, part: int, first: int, count: int) -> DeviceArray:
        """The rows' address."""
        address = self._memory.data_ptr() + (part * self.rows + first) * self._row_bytes
        shape = (count, *self._row)
        return DeviceArray(self._device, self._device_id, address, shape, self._dtype, self._memory)

    def copy(self, source: int, target: int, length: int) -> None:
        """The whole row."""
        for part in range(self.parts):
            Binding(self._session, {SOURCE: self.part(part, source, 1)}, {TARGET: self.part(part, target, 1)}).run()

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """By way of a row on the host."""
        self._upload[0, :, : len(values)] = values.transpose(1, 0, 2)
        Binding(self._session, {SOURCE: self._upload}, {TARGET: self.part(part, row, 1)}).run()

    def release(self, first: int) -> None:
        """Nothing: what a device lends is kept."""


Cache = Union[KvCache, DeviceCache]


def reshaped(memory: Bindable, shape: tuple[int, ...]) -> Bindable:
    """The same memory with another shape."""
    return replace(memory, shape=shape) if isinstance(memory, DeviceArray) else memory.reshape(shape)


# From [parts, rows, heads, capacity, head_dim] and dtype: KvCache for the host, a partial DeviceCache for a device.
CacheMaker = Callable[[tuple[int, ...], DTypeLike], Cache]


class PrefixBlocks:
    """As many blocks of keys and values of all layers, of BLOCK positions each, as `size` bytes hold.

    Memory is real where it was written. One thread carries out one plan after the other, so that no block is written
    while it is read.
    """

    def __init__(self, cache: KvCache, size: int) -> None:
        block = cache.positions(0, 0, BLOCK)
        self.bytes = block.nbytes  # of a block
        self.count = size // self.bytes
        self.array = Reserved((self.count, *block.shape), block.dtype).array

    def load(self, blocks: Ids, cache: Cache, row: int) -> None:
        """Make `blocks` the beginning of a row."""
        assert isinstance(cache, KvCache)
        for at, block in enumerate(blocks):
            cache.positions(row, at * BLOCK, (at + 1) * BLOCK)[...] = self.array[block]

    def save(self, saves: Pairs, cache: Cache, row: int) -> None:
        """Copy blocks of a row, as (block of the row, block)."""
        assert isinstance(cache, KvCache)
        for at, block in saves:
            self.array[block] = cache.positions(row, at * BLOCK, (at + 1) * BLOCK)


def bind_cache(cache: Cache, first: int, rows: int, prefixes: tuple[str, str]) -> tuple[Bindables, Bindables]:
    """A graph's inputs and outputs for the caches of `rows` rows, by name: it writes where it read."""
    parts = {f"{'kv'[part % 2]}_{part // 2}": cache.part(part, first, rows) for part in range(cache.parts)}
    past, present = ({prefix + name: memory for name, memory in parts.items()} for prefix in prefixes)
    return past, present


CROSS_PREFIXES = ("cross_", "cross_present_")


class CrossCache:
    """`groups` sources of at most max_source positions.

    The operator insists on appending a position at each step: it gets the last one again, whose write changes nothing.
    Sources that were encoded in float16 are placed on the device (`place`), others come from the host (`put`).
    """

    def __init__(self, spec: EngineSpec, groups: int, make_cache: CacheMaker = KvCache) -> None:
        self._heads, self._head_dim = spec.heads, spec.head_dim
        shape = (2 * spec.layers, groups, spec.heads, spec.max_source, spec.head_dim)
        self._cache = make_cache(shape, spec.cross_type)
        last_type = "float16" if spec.cross_type == "float16" else "float32"
        self._last = make_cache((*shape[:3], 1, spec.head_dim), last_type)
        self._width = width = spec.heads * spec.head_dim
        self._room = spec.max_source
        self._scales = np.ones((2 * spec.layers, groups, width), np.float32) if spec.cross_type == "int8" else None
        self.last_positions = np.zeros(groups, np.int32)
        self._total = np.zeros((), np.int32)

    def put(self, group: int, values: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        """Fill `group` with a source: `values` [layers, length, 2 * heads * head_dim], K before V.

        `scales` [layers, 2 * heads * head_dim] of int8 values are one a channel.
        """
        layers, length, _ = values.shape
        by_head = values.reshape(layers, length, 2, self._heads, self._head_dim)
        for part in range(self._cache.parts):
            source = by_head[part // 2, :, part % 2]
            self._cache.put(part, group, source)
            self._last.put(part, group, source[-1:])
        if self._scales is not None and scales is not None:
            self._scales[:, group] = scales.reshape(2 * layers, -1)
        self.last_positions[group] = length - 1

    def place(self, session: Any, group: int, encoded: Cache, index: int, length: int) -> None:
        """Fill `group` with source `index` of `encoded`, by a session of Files.place.

        `encoded` is [layers, sources, heads, width, head_dim]; behind K of all sources is V of all.
        """
        room, sources = self._room - encoded.width, encoded.rows // 2
        inputs: dict[str, Bindable] = {"room": np.array([room]), "last": np.array([length - 1])}
        outputs: dict[str, Bindable] = {}
        for part in range(self._cache.parts):
            inputs[f"source_{part}"] = encoded.part(part // 2, part % 2 * sources + index, 1)
            outputs |= {
                f"row_{part}": self._cache.part(part, group, 1),
                f"last_{part}": self._last.part(part, group, 1),
            }
        Binding(session, inputs, outputs).run()
        self.last_positions[group] = length - 1

    def move(self, source: int, target: int) -> None:
        """Make group `target` hold what group `source` does."""
        self._cache.copy(source, target, int(self.last_positions[source]) + 1)
        self._last.copy(source, target, 1)
        if self._scales is not None:
            self._scales[:, target] = self._scales[:, source]
        self.last_positions[target] = self.last_positions[source]

    def empty(self, first: int, end: int) -> None:
        """Make groups from `first` to `end` sources of one position."""
        self.last_positions[first:end] = 0

    def bound(self, groups: int) -> tuple[Bindables, Bindables]:
        """Inputs and outputs of a decoder run of the first `groups` groups."""
        past, present = bind_cache(self._cache, 0, groups, CROSS_PREFIXES)
        shape = (groups, 1, self._width)
        last = {
            f"cross_{'kv'[part % 2]}_last_{part // 2}": reshaped(self._last.part(part, 0, groups), shape)
            for part in range(self._last.parts)
        }
        if self._scales is not None:
            scales = enumerate(self._scales)
            last |= {f"cross_{'kv'[part % 2]}_scale_{part // 2}": each[:groups] for part, each in scales}
        lengths = {"source_seqlens_k": self.last_positions[:groups], "source_total_length": self._total}
        return {**lengths, **last, **past}, present

    def prepare(self, groups: int) -> None:
        """Before a run of the first `groups` groups."""
        self._total[...] = self.last_positions[:groups].max() + 1

    def release(self, first: int) -> None:
        """Free the memory of groups from `first` on."""
        self._cache.release(first)
