"""Keys and values in blocks of positions, for OpenVINO: the memory of a paged graph, and what its runs read of it.

Rows may share full blocks, which nothing writes any more; the last block of a row, where it is filled in part, is the
row's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from .model import InferRequest, Port

BLOCK = 32  # positions; OpenVINO's on CPU

Whole = NDArray[np.int32]


def blocks_for(length: int) -> int:
    """How many blocks hold `length` positions."""
    return -(-length // BLOCK)


class BlockPool:
    """`blocks` blocks, each `free` or used by so many tables (`users`).

    The block that was freed last is taken first, so that no more are ever touched than were in use at once.
    """

    def __init__(self, blocks: int) -> None:
        self.users = [0] * blocks
        self.free = list(range(blocks))[::-1]

    def take(self) -> int:
        """A block for one user. There is always one: the pool has as many as all rows can fill."""
        assert self.free, "a pool of blocks has run out, which it never may"
        block = self.free.pop()
        self.users[block] = 1
        return block

    def share(self, block: int) -> int:
        """The block, with a user more."""
        self.users[block] += 1
        return block

    def drop(self, block: int) -> None:
        """A user less; free without any."""
        self.users[block] -= 1
        if not self.users[block]:
            self.free.append(block)


class BlockTables:
    """Tables of `rows` rows of at most `length` positions, with blocks of a pool that other tables use too."""

    def __init__(self, pool: BlockPool, rows: int, length: int) -> None:
        self._pool = pool
        self._blocks: Whole = np.zeros((rows, blocks_for(length)), np.int32)
        self._places = np.arange(blocks_for(length), dtype=np.int32)
        self.counts: Whole = np.zeros(rows, np.int32)

    def of(self, row: int) -> Whole:
        """The row's blocks in the order of its positions."""
        return self._blocks[row, : self.counts[row]]

    def grow(self, row: int, length: int) -> None:
        """Give the row the blocks that it lacks for `length` positions."""
        count, wanted = int(self.counts[row]), blocks_for(length)
        if wanted > count:
            self._blocks[row, count:wanted] = [self._pool.take() for _ in range(wanted - count)]
            self.counts[row] = wanted

    def shrink(self, row: int, blocks: int) -> None:
        """Let go of all blocks but the first `blocks`."""
        if self.counts[row] > blocks:
            for block in self.of(row)[blocks:].tolist():
                self._pool.drop(block)
            self.counts[row] = blocks

    def fork(self, source: int, target: int, length: int) -> tuple[int, int] | None:
        """Make row `target` hold the first `length` positions of row `source`.

        Full blocks are shared. The caller copies a block that is filled in part: the answer is (source, target).
        """
        full, rest = divmod(length, BLOCK)
        self._share(source, target, full)
        if not rest:
            self.shrink(target, full)
            return None
        self.shrink(target, full + 1)
        if self.counts[target] > full and self._pool.users[self._blocks[target, full]] > 1:
            self.shrink(target, full)
        self.grow(target, length)
        return int(self._blocks[source, full]), int(self._blocks[target, full])

    def alias(self, source: int, target: int) -> None:
        """Make row `target` hold what row `source` does, to be read only."""
        count = int(self.counts[source])
        self._share(source, target, count)
        self.shrink(target, count)

    def move(self, source: int, target: int) -> None:
        """Give the blocks of row `source`, which is empty then, to row `target`."""
        self.shrink(target, 0)
        count = int(self.counts[source])
        self._blocks[target, :count] = self._blocks[source, :count]
        self.counts[target] = count
        self.counts[source] = 0

    def flat(self, first: int, rows: int) -> tuple[Whole, Whole]:
        """The blocks of `rows` rows one after the other, and where each row's begin, with the end of the last."""
        counts = self.counts[first : first + rows]
        begins = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=begins[1:])
        return self._blocks[first : first + rows][self._places < counts[:, None]], begins

    def _share(self, source: int, target: int, blocks: int) -> None:
        """The first `blocks` blocks of `source` to `target`; most are the same already where rows are beams."""
        common = min(blocks, int(self.counts[target]))
        own, other = self._blocks[target], self._blocks[source]
        for at in np.flatnonzero(own[:common] != other[:common]).tolist():
            self._pool.drop(int(own[at]))
            own[at] = self._pool.share(int(other[at]))
        for at in range(common, blocks):
            own[at] = self._pool.share(int(other[at]))
        if blocks > common:
            self.counts[target] = blocks


KEY_AND_VALUE = ("key", "value")


class PagedCache:
    """`blocks` blocks for the inputs PREFIX{key,value}_cache.LAYER among `ports`, real where they were written only."""

    def __init__(self, ports: Mapping[str, Port], prefix: str, layers: int, blocks: int) -> None:
        names = [f"{prefix}{part}_cache.{layer}" for layer in range(layers) for part in KEY_AND_VALUE]
        self.prefix = prefix
        self.pool = BlockPool(blocks)
        self._memory = {name: Reserved((blocks, *ports[name].shape[1:]), ports[name].dtype) for name in names}
        # Keys of layer i are part 2 * i, values 2 * i + 1.
        self.parts = [memory.array for memory in self._memory.values()]
        self._is_packed = self.parts[0].dtype == np.uint8

    def inputs(self) -> dict[str, NDArray[Any]]:
        """The arrays as inputs of the graph."""
        return {name: memory.array for name, memory in self._memory.items()}

    def copy(self, blocks: Sequence[tuple[int, int]], length: int) -> None:
        """The first `length` positions, at least, of blocks, as (source, target)."""
        # One block of a part a time: the memory of two is visibly apart, so that numpy makes no copy in between.
        for part in self.parts:
            filled = part.shape[2] if self._is_packed else length
            for source, target in blocks:
                part[target, :, :filled] = part[source, :, :filled]

    def put(self, part: int, blocks: NDArray[np.int32], values: NDArray[Any]) -> None:
        """Fill blocks of numbers that are not packed from `values` [heads, length, head_dim]."""
        for at, block in enumerate(blocks.tolist()):
            piece = values[:, at * BLOCK : (at + 1) * BLOCK]
            self.parts[part][block, :, : piece.shape[1]] = piece

    def release(self) -> None:
        """Give all pages back to the operating system; they read as zeros."""
        for memory in self._memory.values():
            memory.release(0, memory.array.size)


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

    def put(self, row: int, values: Sequence[NDArray[Any]]) -> None:
        """Fill a row with [heads, length, head_dim] of each part; see PagedCache.put."""
        length = values[0].shape[1]
        self.clear(row)
        self.tables.grow(row, length)
        for part, each in enumerate(values):
            self._cache.put(part, self.tables.of(row), each)
        self.set_past(row, length)

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
