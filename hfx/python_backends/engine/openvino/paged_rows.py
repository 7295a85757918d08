"""What runs of one token a row read of a paged cache: how far a row or a source is filled, and in which blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from .model import InferRequest
from .paged_cache import BLOCK, KEY_AND_VALUE, BlockTables, PagedCache


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


PREFIX = "cross_"


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
