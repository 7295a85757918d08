"""The memory for the keys and values of rows, prefixes and encoded sources, on the host or on a device.

These classes do not know which rows are in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..checks import Ids
from .device_memory import HOST, Block, Device, DeviceArray, DeviceCounts
from .prefix_cache import BLOCK
from .sessions import Bindable, Bindables, Reserved
from .spec import EngineSpec

Pairs = Sequence[tuple[int, int]]


class KvCache:
    """A KV cache [parts, rows, heads, capacity, head_dim] on the host.

    The keys of layer i are part 2 * i, its values part 2 * i + 1. The capacity is in positions. Memory is allocated
    when it is first written. Nothing is cleared: the memory beyond a row's length has garbage, and is never read.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._memory = Reserved(shape, dtype)
        self.array = self._memory.array
        self.parts, self.rows = shape[:2]

    def part(self, part: int, first: int, count: int) -> NDArray[np.generic]:
        """Return the keys or values of `count` rows as a contiguous view [count, heads, capacity, head_dim]."""
        return self.array[part, first : first + count]

    def layer(self, layer: int) -> NDArray[np.generic]:
        """Return the keys and values of all rows as a contiguous view [2, rows, heads, capacity, head_dim]."""
        return self.array[2 * layer : 2 * layer + 2]

    def positions(self, row: int, first: int, end: int) -> NDArray[Any]:
        """Return the keys and values of a row's positions as a view [parts, heads, positions, head_dim]."""
        return self.array[:, row, :, first:end]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy positions 0 to `length` of row `source` to row `target`."""
        # One part at a time: then numpy can see that the rows' memory does not overlap, and makes no temporary copy.
        for part in self.array:
            part[target, :, :length] = part[source, :, :length]

    def take(self, row: int, cache: KvCache, source: int, start: int, length: int) -> None:
        """Copy `length` positions of row `source` of `cache`, from `start` on, to the beginning of `row`."""
        self.array[:, row, :, :length] = cache.positions(source, start, start + length)

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""
        self.array[part, row, :, : len(values)] = values.transpose(1, 0, 2)

    def release(self, first: int) -> None:
        """Give the pages of the rows from `first` on back to the operating system."""
        row = self.array[0, 0].size
        for part in range(self.parts):
            self._memory.release((part * self.rows + first) * row, (part + 1) * self.rows * row)


class DeviceCache:
    """A KV cache like KvCache in the memory of a GPU, which is allocated at once, or is the beginning of `memory`.

    Copies follow the runs before them in the device's stream, and the host does not wait for them.
    """

    def __init__(
        self, device: Device, shape: tuple[int, ...], dtype: DTypeLike, memory: DeviceArray | None = None
    ) -> None:
        self.parts, self.rows, *self._row = shape
        self._heads, self._capacity, head_dim = self._row
        self.device = device
        self._memory = (memory or device.allocate(shape, dtype)).reshape(shape)
        self._item = head_dim * self._memory.dtype.itemsize  # bytes of one position of one head

    def part(self, part: int, first: int, count: int) -> DeviceArray:
        """Return the memory of the keys or values of `count` rows."""
        return self._array(part, first, (count, *self._row))

    def layer(self, layer: int) -> DeviceArray:
        """Return the memory of the keys and values of all rows."""
        return self._array(2 * layer, 0, (2, self.rows, *self._row))

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return self._memory.nbytes

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy positions 0 to `length` of row `source` to row `target`."""
        self.take(target, self, source, 0, length)

    def take(self, row: int, cache: DeviceCache, source: int, start: int, length: int) -> None:
        """Copy `length` positions of row `source` of `cache`, from `start` on, to the beginning of `row`."""
        width, of_row = length * self._item, self._block(0, row)
        self.device.copier.copy(cache._block(0, source, start), of_row, width, self._heads, self.parts)

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""
        by_head = np.ascontiguousarray(values.transpose(1, 0, 2), self._memory.dtype)
        width = len(values) * self._item
        block = Block(by_head.ctypes.data, width, self._heads, HOST)
        self.device.copier.copy(block, self._block(part, row), width, self._heads)
        self.device.copier.synchronize()  # until then, `by_head` is read

    def release(self, first: int) -> None:
        """Do nothing: memory on a device stays allocated."""

    def _array(self, part: int, row: int, shape: tuple[int, ...]) -> DeviceArray:
        return replace(self._memory, address=self._block(part, row).address, shape=shape)

    def _block(self, part: int, row: int, position: int = 0) -> Block:
        """Return the memory of a row from a position on. A line is a head, a plane is a part."""
        lines = (part * self.rows + row) * self._heads
        pitch = self._capacity * self._item
        return Block(self._memory.address + lines * pitch + position * self._item, pitch, self.rows * self._heads)


Cache = Union[KvCache, DeviceCache]


class Place(Protocol):
    """What the rows of a model need of the placement of its nets (placement.py)."""

    counts: DeviceCounts

    def cache(self, shape: tuple[int, ...], dtype: DTypeLike) -> Cache:
        """Return a cache [parts, rows, heads, capacity, head_dim]."""

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Bindable:
        """Return memory beside the caches."""

    def run_size(self, groups: int, most: int) -> int:
        """Return the number of groups of a step of `groups`; `most` have memory."""

    def wait(self) -> None:
        """Wait for the end of all runs that were begun. Raises EngineError."""


class PrefixBlocks:
    """The blocks of a prefix cache: keys and values of all layers for BLOCK positions each.

    There are as many blocks as `size` bytes hold. Memory is allocated when it is first written. One thread carries out
    one plan after the other, so that no block is written while it is read.
    """

    def __init__(self, cache: KvCache, size: int) -> None:
        block = cache.positions(0, 0, BLOCK)
        self.bytes = block.nbytes  # of a block
        self.count = size // self.bytes
        self.array = Reserved((self.count, *block.shape), block.dtype).array

    def load(self, blocks: Ids, cache: KvCache, row: int) -> None:
        """Copy `blocks` to the beginning of a row."""
        for at, block in enumerate(blocks):
            cache.positions(row, at * BLOCK, (at + 1) * BLOCK)[...] = self.array[block]

    def save(self, saves: Pairs, cache: KvCache, row: int) -> None:
        """Copy blocks of a row to the prefix cache, for each (block of the row, block of the cache) pair in `saves`."""
        for at, block in saves:
            self.array[block] = cache.positions(row, at * BLOCK, (at + 1) * BLOCK)


def bind_cache(cache: Cache, first: int, rows: int, prefixes: tuple[str, str]) -> tuple[Bindables, Bindables]:
    """Return a graph's inputs and outputs for the caches of `rows` rows, by name. Both are the same memory."""
    parts = {f"{'kv'[part % 2]}_{part // 2}": cache.part(part, first, rows) for part in range(cache.parts)}
    past, present = ({prefix + name: memory for name, memory in parts.items()} for prefix in prefixes)
    return past, present


CROSS_PREFIXES = ("cross_", "cross_present_")


class CrossCache:
    """The cross K/V of `groups` sources, of at most max_source positions each.

    The attention operator appends a position at each step. It gets the source's last position again, so that its write
    changes nothing. Sources that were encoded in float16 come from a cache of the same kind (`take`), others from the
    host (`put`).
    """

    def __init__(self, spec: EngineSpec, groups: int, place: Place) -> None:
        self._heads, self._head_dim = spec.heads, spec.head_dim
        shape = (2 * spec.layers, groups, spec.heads, spec.max_source, spec.head_dim)
        self._cache = place.cache(shape, spec.cross_type)
        last_type = "float16" if spec.cross_type == "float16" else "float32"
        self._last = place.cache((*shape[:3], 1, spec.head_dim), last_type)
        self._width = width = spec.heads * spec.head_dim
        self._capacity = spec.max_source
        self._scales = np.ones((2 * spec.layers, groups, width), np.float32) if spec.cross_type == "int8" else None
        self.last_positions = np.zeros(groups, np.int32)
        self._total = np.zeros((), np.int32)

    def put(self, group: int, values: NDArray[Any], scales: NDArray[np.float32] | None) -> None:
        """Fill `group` with a source: `values` [layers, length, 2 * heads * head_dim], K before V.

        `scales` [layers, 2 * heads * head_dim] has a scale for each channel of int8 values.
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

    def take(self, group: int, encoded: Any, source: int, length: int) -> None:
        """Fill `group` with row `source` of `encoded`, a cache that the encoder has written."""
        self._cache.take(group, encoded, source, 0, length)
        self._last.take(group, encoded, source, length - 1, 1)
        self.last_positions[group] = length - 1

    def move(self, source: int, target: int) -> None:
        """Copy the cross K/V of group `source` to group `target`."""
        self._cache.copy(source, target, int(self.last_positions[source]) + 1)
        self._last.copy(source, target, 1)
        if self._scales is not None:
            self._scales[:, target] = self._scales[:, source]
        self.last_positions[target] = self.last_positions[source]

    def empty(self, first: int, end: int) -> None:
        """Set the lengths of groups from `first` to `end` to one position."""
        self.last_positions[first:end] = 0

    def bound(self, groups: int) -> tuple[Bindables, Bindables]:
        """Return the inputs and outputs of a decoder run of the first `groups` groups."""
        past, present = bind_cache(self._cache, 0, groups, CROSS_PREFIXES)
        shape = (groups, 1, self._width)
        last = {
            f"cross_{'kv'[part % 2]}_last_{part // 2}": self._last.part(part, 0, groups).reshape(shape)
            for part in range(self._last.parts)
        }
        if self._scales is not None:
            scales = enumerate(self._scales)
            last |= {f"cross_{'kv'[part % 2]}_scale_{part // 2}": each[:groups] for part, each in scales}
        lengths = {"source_seqlens_k": self.last_positions[:groups], "source_total_length": self._total}
        return {**lengths, **last, **past}, present

    def prepare(self, groups: int) -> None:
        """Set the total length for a run of the first `groups` groups."""
        self._total[...] = self.last_positions[:groups].max() + 1

    def prepare_any(self) -> None:
        """Set the total length to the capacity, which is right for runs of groups whose sources have any length."""
        self._total[...] = self._capacity

    def release(self, first: int) -> None:
        """Free the memory of groups from `first` on."""
        self._cache.release(first)
