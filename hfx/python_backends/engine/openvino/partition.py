"""The partition of a decoder in OpenVINO for one number of beams: what its steps read and change in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from ..memory import Reserved
from ..probes import StepSize
from ..runner import Outputs, Pairs, Verifier
from .model import CROSS, PREFIXES, InferRequest, LogitsReader
from .paged_cache import KEY_AND_VALUE, PagedCache, PagedRows

# Positions; a capacity is a multiple of it. Each run reads all of the capacity, each growth moves all that is filled.
STEP = 32
NEW = "new_kv"


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


class PagedPartition:
    """`groups` groups of `width` rows each, for which `own`, and with an encoder `sources`, have memory.

    A step has the groups of `size` (see probes).
    """

    verifier: Verifier | None = None

    def __init__(
        self,
        width: int,
        groups: int,
        request: InferRequest,
        own: OwnRows,
        sources: PagedSources | None,
        logits: LogitsReader,
        size: StepSize,
    ) -> None:
        rows = groups * width
        self.width = width
        self.ids = np.zeros(rows, np.int64)
        self.positions = np.zeros(rows, np.int64)
        self.own = own
        self.sources = sources
        self.size = size
        self._last = np.arange(rows, dtype=np.int64)
        self._request = request
        self._logits = logits
        self._bound = 0

    def put_source(self, group: int, values: Sequence[NDArray[Any]]) -> None:
        """Empty rows, and the cross K/V of one source."""
        assert self.sources is not None
        self.sources.put(group, values)
        self.clear(group)

    def share(self, source: int, target: int) -> None:
        """Empty rows, and the cross K/V of group `source`."""
        if self.sources is not None:
            self.sources.share(source, target)
        self.clear(target)

    def clear(self, group: int) -> None:
        """Empty rows, with the source that the group has."""
        for row in range(group * self.width, (group + 1) * self.width):
            self.own.clear(row)
            self.positions[row] = 0

    def put_past(self, row: int, past: NDArray[Any]) -> None:
        """As numbered in PagedCache, whose numbers must not be packed."""
        self.own.put(row, list(past.transpose(0, 2, 1, 3)))
        self.positions[row] = past.shape[1]

    def move(self, source: int, target: int) -> None:
        """Own and cross K/V, positions and next inputs."""
        if self.sources is not None:
            self.sources.move(source, target)
        for beam in range(self.width):
            one, other = source * self.width + beam, target * self.width + beam
            self.own.move(one, other)
            for array in (self.ids, self.positions):
                array[other] = array[one]

    def reorder_cache(self, pairs: Pairs) -> None:
        """The cross K/V are the group's."""
        self.own.reorder(pairs)

    def set_next_tokens(self, pairs: Pairs) -> None:
        """Overwrite the argmax of the last run."""
        rows, tokens = zip(*pairs)  # noqa: B905 - pairs
        self.ids[list(rows)] = tokens

    def step(self, groups: int, logits: bool) -> Outputs:
        """One run of a token for each row."""
        rows, run = groups * self.width, self.size.of(groups)
        for group in range(groups, run):
            self.share(0, group)
        if run != self._bound:
            self._bind(run)
        self.own.prepare(run * self.width)
        if self.sources is not None:
            self.sources.prepare(run)
        self._request.run()
        self.advance(rows, self._request.output("next_ids"))
        return Outputs(self.ids[:, None], self._logits.read(self._request) if logits else None).first(rows)

    def advance(self, rows: int, next_ids: NDArray[np.int64]) -> None:
        """The first `rows` rows have taken a step, which gave `next_ids` [rows or more, 1]."""
        self.ids[:rows] = next_ids[:rows, 0]
        self.own.advance(rows)
        self.positions[:rows] += 1

    def release(self, first: int) -> None:
        """Groups from `first` on are not in use."""
        self.own.release(first * self.width)
        if self.sources is not None:
            self.sources.release(first)

    def _bind(self, groups: int) -> None:
        rows = groups * self.width
        inputs = {"input_ids": self.ids[:rows], "position_ids": self.positions[:rows]}
        if self.sources is None:
            inputs["last"] = self._last[:rows]
        else:
            self.sources.bind(groups)
        self._request.bind(inputs)
        self.own.bind(rows)
        self._bound = groups


def _capacity(length: int) -> int:
    return -(-length // STEP) * STEP
