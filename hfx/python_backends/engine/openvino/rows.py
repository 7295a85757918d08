"""What a decoder's runs read of K and V, how far each row or source is filled: in blocks, or in rows that grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from .model import InferRequest
from .paged_cache import BLOCK, KEY_AND_VALUE, BlockTables, PagedCache

PREFIX = "cross_"  # of inputs for sources
# Positions; a capacity is a multiple of it. Each run reads all of the capacity, each growth moves all that is filled.
STEP = 32
NEW = "new_kv"


class PagedRows:
    """`rows` rows of at most `length` positions, as inputs of `request`.

    `past[row]` positions come before the one that a run appends.
    """

    def __init__(self, cache: PagedCache, rows: int, length: int, request: InferRequest) -> None:
        self._cache = cache
        self._request = request
        self.tables = BlockTables(cache.pool, rows, length)
        self.past = np.zeros(rows, np.int32)
        self._begins = np.arange(rows + 1, dtype=np.int32)
        self._longest = np.zeros((), np.int32)
        self._changed = True
        self._used = 0  # rows from here on have no blocks
        request.bind(cache.inputs())

    def bind(self, rows: int) -> None:
        """Before the first run of `rows` rows after runs of another number."""
        prefix = self._cache.prefix
        self._request.bind(
            {
                prefix + "past_lens": self.past[:rows],
                prefix + "subsequence_begins": self._begins[: rows + 1],
                prefix + "max_context_len": self._longest,
            }
        )
        self._changed = True

    def prepare(self, rows: int) -> None:
        """Before each run: room for a position more, and the tables where they are not as they were."""
        self.release(rows)
        self._longest[...] = self.past[:rows].max() + 1
        self.make_room(rows)
        if self._changed:
            indices, begins = self.tables.flat(0, rows)
            prefix = self._cache.prefix
            self._request.bind({prefix + "block_indices": indices, prefix + "block_indices_begins": begins})
            self._changed = False

    def make_room(self, rows: int) -> None:
        """A position more for each row."""
        past = self.past[:rows]
        full = past >= self.tables.counts[:rows] * BLOCK
        if full.any():
            for row in np.flatnonzero(full).tolist():
                self.tables.grow(row, int(past[row]) + 1)
            self._used = max(self._used, rows)
            self._changed = True

    def advance(self, rows: int) -> None:
        """After a run: what it appended is past."""
        self.past[:rows] += 1

    def clear(self, row: int) -> None:
        """Empty the row."""
        self.tables.shrink(row, 0)
        self.set_past(row, 0)

    def set_past(self, row: int, past: int) -> None:
        """Say how many positions the row has, whose blocks hold them."""
        self.past[row] = past
        self._used = max(self._used, row + 1)
        self._changed = True

    def fork(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` positions of `source`."""
        self._copy([self.tables.fork(source, target, length)], length)
        self.set_past(target, length)

    def reorder(self, pairs: Sequence[tuple[int, int]]) -> None:
        """(source, target) rows of one length; no source is a target."""
        length = int(self.past[pairs[0][0]])
        self._copy([self.tables.fork(source, target, length) for source, target in pairs], length)
        self._changed = True

    def alias(self, source: int, target: int) -> None:
        """Make `target` hold what `source` does, where what runs append is there already."""
        self.tables.alias(source, target)
        self.set_past(target, int(self.past[source]))

    def move(self, source: int, target: int) -> None:
        """Make `target` hold what `source` does, which holds nothing then."""
        self.tables.move(source, target)
        self.set_past(target, int(self.past[source]))
        self.past[source] = 0

    def release(self, first: int) -> None:
        """Rows from `first` on hold nothing."""
        if self._used > first:
            for row in range(first, self._used):
                self.tables.shrink(row, 0)
            self._used = first
            self._changed = True

    def _copy(self, blocks: Sequence[tuple[int, int] | None], length: int) -> None:
        self._cache.copy([each for each in blocks if each is not None], length % BLOCK)


class PagedSources:
    """`groups` sources of at most `length` positions, of which each has numbers `width` wide, as inputs of `request`.

    The operator insists on appending a position at each step: it gets the last one again, whose write changes nothing,
    so that groups may share all of their blocks.
    """

    def __init__(self, cache: PagedCache, groups: int, length: int, width: int, request: InferRequest) -> None:
        self._cache = cache
        self._request = request
        self._rows = PagedRows(cache, groups, length, request)
        self._names = [
            f"{PREFIX}{part[0]}_last.{layer}" for layer in range(len(cache.parts) // 2) for part in KEY_AND_VALUE
        ]
        self._last: NDArray[np.float32] = Reserved((len(self._names), groups, width), np.float32).array

    def bind(self, groups: int) -> None:
        """Before the first run of `groups` groups after runs of another number."""
        self._rows.bind(groups)
        parts = zip(self._names, self._last, strict=True)
        self._request.bind({name: last[:groups] for name, last in parts})

    def prepare(self, groups: int) -> None:
        """Before each run."""
        self._rows.prepare(groups)

    def put(self, group: int, values: Sequence[NDArray[Any]]) -> None:
        """Fill `group`: [heads, length, head_dim] for each part, K of layer i at 2 * i and V at 2 * i + 1."""
        length = values[0].shape[1]
        self._rows.clear(group)
        self._rows.tables.grow(group, length)
        blocks = self._rows.tables.of(group)
        for part, each in enumerate(values):
            self._cache.put(part, blocks, each)
            self._last[part, group] = each[:, -1].reshape(-1)
        self._rows.set_past(group, length - 1)

    def share(self, source: int, target: int) -> None:
        """Make group `target` hold what group `source` does."""
        self._rows.alias(source, target)
        self._last[:, target] = self._last[:, source]

    def move(self, source: int, target: int) -> None:
        """Make group `target` hold what group `source` does, which holds nothing then."""
        self._rows.move(source, target)
        self._last[:, target] = self._last[:, source]

    def release(self, first: int) -> None:
        """Groups from `first` on hold nothing."""
        self._rows.release(first)


class GrownRows:
    """As PagedRows, for attention that takes no blocks: rows have one capacity, which grows with the longest.

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
