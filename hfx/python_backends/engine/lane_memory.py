"""What the one-token runs of a lane read and change in place: next inputs, lengths, and the self-attention cache.

Owns these arrays for all rows of the lane and their names in the graphs; knows neither sessions nor why rows move.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bindings import Arrays, Bindables
from .cache import Cache


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
