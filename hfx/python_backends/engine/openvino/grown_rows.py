"""Keys and values in rows of one capacity, which grows with the longest: for attention that takes no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from .model import InferRequest

# Positions; a capacity is a multiple of it. Each run reads all of the capacity, each growth moves all that is filled.
STEP = 32
NEW = "new_kv"


class GrownRows:
    """`rows` rows of at most `length` positions, as inputs of `request`.

    What lies beyond a row's `past` is masked in the graph, and finite.
    """

    def __init__(self, layers: int, rows: int, heads: int, head_dim: int, length: int, request: InferRequest) -> None:
        self._request = request
        self._shape = (2 * layers, rows, heads, head_dim)
        self._names = [f"past_{part}_{layer}" for layer in range(layers) for part in "kv"]
        self._memory = Reserved((2 * layers, rows * heads * _capacity(length) * head_dim), np.float32)
        self.past = np.zeros(rows, np.int64)
        self.array = self._view(STEP)
        # Which write made a position: rows that were copied from each other have the same marks as far as they agree.
        self._marks: NDArray[np.int64] = Reserved((rows, length), np.int64).array
        self._mark = np.arange(rows, dtype=np.int64)
        self._touched = 0  # rows from here on have no memory
        self._changed = True

    def bind(self, rows: int) -> None:
        """Before the first run of `rows` rows after runs of another number."""
        self._changed = True

    def prepare(self, rows: int) -> None:
        """Before each run: room for a position more, and no more than twice of what is needed."""
        longest = int(self.past[:rows].max())
        wanted, capacity = _capacity(longest + 1), self.array.shape[3]
        if wanted > capacity or 2 * wanted <= capacity:
            self._lay_out(wanted, rows, longest)
        if self._changed:
            parts = zip(self._names, self.array, strict=True)
            self._request.bind({name: part[:rows] for name, part in parts})
            self._changed = False
        self._touched = max(self._touched, rows)

    def advance(self, rows: int) -> None:
        """After a run: append what it made of the first `rows` rows."""
        added = self._request.output(NEW)[:, :rows]
        past = self.past[:rows]
        if (past == past[0]).all():
            self.array[:, :rows, :, past[0]] = added
        else:
            self.array[:, np.arange(rows), :, past] = added.transpose(1, 0, 2, 3)
        self._mark += len(self._mark)
        self._marks[np.arange(rows), past] = self._mark[:rows]
        past += 1

    def clear(self, row: int) -> None:
        """Empty the row."""
        self.past[row] = 0

    def reorder(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(source, target) rows of one length; no source is a target."""
        for source, target in pairs:
            self._copy(source, target)

    def move(self, source: int, target: int) -> None:
        """Make `target` hold what `source` does."""
        self._copy(source, target)
        self.past[target] = self.past[source]

    def release(self, first: int) -> None:
        """Rows from `first` on hold nothing. Their memory is given back where that is the larger part."""
        if 2 * first < self._touched:
            row, part = self.array[0, 0].size, self._memory.array.shape[1]
            for at in range(len(self._names)):
                self._memory.release(at * part + first * row, (at + 1) * part)
            self._touched = first

    def _copy(self, source: int, target: int) -> None:
        length = int(self.past[source])
        other = self._marks[target, :length] != self._marks[source, :length]
        if not other.any():
            return
        since = int(other.argmax())
        self._marks[target, since:length] = self._marks[source, since:length]
        # One part a time: the memory of two rows of a part is visibly apart, so that numpy makes no copy in between.
        for part in self.array:
            part[target, :, since:length] = part[source, :, since:length]

    def _lay_out(self, capacity: int, rows: int, length: int) -> None:
        """Make rows `capacity` long; the first `rows` keep their first `length` positions."""
        moved = self._view(capacity)
        # In an order in which no row is overwritten before it has moved. Where it overlaps itself, numpy sees that.
        order = range(rows)[:: -1 if capacity > self.array.shape[3] else 1]
        for before, after in zip(self.array, moved, strict=True):
            for row in order:
                after[row, :, :length] = before[row, :, :length]
        self.array = moved
        self._changed = True

    def _view(self, capacity: int) -> NDArray[Any]:
        parts, rows, heads, head_dim = self._shape
        used: NDArray[Any] = self._memory.array[:, : rows * heads * capacity * head_dim]
        return used.reshape(parts, rows, heads, capacity, head_dim)


def _capacity(length: int) -> int:
    return -(-length // STEP) * STEP
