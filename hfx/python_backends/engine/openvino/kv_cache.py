"""Where keys and values lie in OpenVINO: in blocks of positions, and what its runs read of them.

Rows may share full blocks, which nothing writes any more; the last block of a row, where it is filled in part, is the
row's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from .model import CROSS, PREFIXES, InferRequest, Port

BLOCK = 32  # positions; OpenVINO's on CPU
# Positions; a capacity is a multiple of it. Each run reads all of the capacity, each growth moves all that is filled.
STEP = 32
NEW = "new_kv"

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


class PagedSources:
    """`groups` sources of at most `length` positions, of which each has numbers `width` wide, as inputs of `request`.

    The operator insists on appending a position at each step: it gets the last one again, whose write changes nothing,
    so that groups may share all of their blocks.
    """

    def __init__(self, cache: PagedCache, groups: int, length: int, width: int, request: InferRequest) -> None:
        self._request = request
        self._rows = PagedRows(cache, groups, length, request)
        layers = range(len(cache.parts) // 2)
        self._names = [f"{PREFIXES[CROSS]}{part[0]}_last.{layer}" for layer in layers for part in KEY_AND_VALUE]
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
        self._rows.put(group, values)
        for part, each in enumerate(values):
            self._last[part, group] = each[:, -1].reshape(-1)
        self._rows.set_past(group, values[0].shape[1] - 1)

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

    def put(self, row: int, values: Sequence[NDArray[Any]]) -> None:
        """Fill a row with [heads, length, head_dim] of each part; rows before it keep what they have."""
        length = values[0].shape[1]
        if (capacity := _capacity(length)) > self.array.shape[3]:
            self._lay_out(capacity, row, int(self.past[:row].max(initial=0)))
        for part, each in zip(self.array, values, strict=True):
            part[row, :, :length] = each
        self._mark += len(self._mark)
        self._marks[row, :length] = self._mark[row]
        self.past[row] = length
        self._touched = max(self._touched, row + 1)

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


OwnRows = Union[PagedRows, GrownRows]  # K/V of the rows' own tokens


def _capacity(length: int) -> int:
    return -(-length // STEP) * STEP
