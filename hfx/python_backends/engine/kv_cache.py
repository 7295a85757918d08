"""Where keys and values of self attention lie: what runners need of a cache, the one on the host, and a lane's rows.

The others are in the files beside: kv_cache_device.py (GPU), kv_cache_cross.py (of encoded sources), and for OpenVINO
kv_cache_paged.py (in blocks) and kv_cache_grown.py. They know neither which rows are in use nor why one is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .memory import Arrays, Bindable, Bindables, Reserved


class Cache(Protocol):
    """[parts, rows, heads, capacity, head_dim]: keys of layer i are part 2 * i, values 2 * i + 1.

    Capacity is in positions. Nothing is cleared: what lies beyond a row's length is garbage and never read.
    """

    @property
    def parts(self) -> int:
        """Twice the layers."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def part(self, part: int, first: int, count: int) -> Bindable:
        """[count, heads, capacity, head_dim], contiguous: keys or values of `count` rows."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length`, at least, of row `source` to row `target`."""

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""

    def give_back(self, first: int) -> None:
        """Free the memory of rows from `first` on, where that can be done."""


class CacheMaker(Protocol):
    """Where caches come from: KvCache for the host, DeviceCaches for a device."""

    def __call__(self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Cache:
        """A cache of 2 * `layers` parts."""


class KvCache:
    """A `Cache` whose memory is real where it was written only."""

    def __init__(self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> None:
        self._memory = Reserved((2 * layers, rows, heads, capacity, head_dim), dtype)
        self.array = self._memory.array
        self.parts, self.rows = 2 * layers, rows

    def part(self, part: int, first: int, count: int) -> NDArray[np.generic]:
        """A view of the rows."""
        return self.array[part, first : first + count]

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length`, no more."""
        # One part a time: the memory of two rows of a part is visibly apart, so that numpy makes no copy in between.
        for part in self.array:
            part[target, :, :length] = part[source, :, :length]

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Transposed, and cast, while it is copied."""
        self.array[part, row, :, : len(values)] = values.transpose(1, 0, 2)

    def give_back(self, first: int) -> None:
        """Give the rows' pages back to the operating system."""
        row = self.array[0, 0].size
        for part in range(self.parts):
            self._memory.give_back((part * self.rows + first) * row, (part + 1) * self.rows * row)


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
