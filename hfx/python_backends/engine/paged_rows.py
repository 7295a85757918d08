"""What runs of one token a row read of a paged cache: how far each row is filled, and in which blocks.

Owns the paging inputs of such runs, changed in place; knows neither tokens nor why rows move.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .block_tables import BLOCK, BlockTables
from .openvino_model import InferRequest
from .paged_cache import PagedCache


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
        self.let_go(rows)
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
        full = past >= self.tables.room[:rows]
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

    def follow(self, pairs: Sequence[tuple[int, int]]) -> None:
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

    def let_go(self, first: int) -> None:
        """Rows from `first` on hold nothing."""
        if self._used > first:
            self.tables.release(range(first, self._used))
            self._used = first
            self._changed = True

    def _copy(self, blocks: Sequence[tuple[int, int] | None], length: int) -> None:
        self._cache.copy([each for each in blocks if each is not None], length % BLOCK)
