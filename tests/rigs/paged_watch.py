"""A watch over OpenVINO's runners: block tables are checked after each step, all that nobody may read is poisoned.

Blocks of floats may hold NaN, as what is beyond a row's length is not read. Rows of one capacity are multiplied whole:
there the poison is finite, and far larger than anything real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hfx.python_backends.engine.fair_scheduler import LIGHT, FairScheduler
from hfx.python_backends.engine.openvino.kv_cache import BLOCK, BlockPool, BlockTables, GrownRows, PagedCache, PagedRows
from hfx.python_backends.engine.openvino.runners import PagedDecoderRunner, PagedEncoderDecoderRunner
from hfx.python_backends.engine.plan import Plan
from tests.rigs import engine_invariants as invariants

HUGE = 1e20
Lengths = Mapping[int, int]  # of rows that are in use


def check_blocks(pool: BlockPool, tables: Sequence[BlockTables]) -> None:
    """Raise AssertionError if a block of `pool` is lost, or counted wrongly. `tables` are all that take from it."""
    held = Counter(block for each in tables for row in range(len(each.counts)) for block in each.of(row).tolist())
    assert pool.users == [held[block] for block in range(len(pool.users))], "a block's users are miscounted"
    free = [block for block in range(len(pool.users)) if not pool.users[block]]
    assert sorted(pool.free) == free, "a free block is lost, or free twice"
    for each in tables:
        for row in range(len(each.counts)):
            assert len(set(each.of(row).tolist())) == each.counts[row], f"row {row} has a block twice"


def check_written(rows: PagedRows, pool: BlockPool) -> None:
    """Raise AssertionError if a row writes its next position into a block that another one has too."""
    for row, past in enumerate(rows.past.tolist()):
        for block in rows.tables.of(row)[past // BLOCK : past // BLOCK + 1].tolist():
            assert pool.users[block] == 1, f"row {row} writes into block {block}, which it shares"


class PagedWatch:
    """The observer; `plans` are those that were carried out."""

    def __init__(self, runner: PagedDecoderRunner | PagedEncoderDecoderRunner) -> None:
        self.runner = runner
        self.plans: list[Plan] = []
        self._random = np.random.default_rng(0)
        self._mark = -1

    def __call__(self, plan: Plan, state: FairScheduler) -> None:
        self.plans.append(plan)
        invariants.check(state)
        lengths: dict[int, dict[int, int]] = {}
        for partition in state.batches[LIGHT].partitions.values():
            for sequence in partition.sequences:
                lengths.setdefault(partition.width, {}).update(dict.fromkeys(sequence.rows, sequence.length))
        self._check(lengths)
        self.poison(lengths, state.batches[LIGHT].chunking is not None)

    def poison(self, lengths: Mapping[int, Lengths], chunking: bool = False) -> None:
        """Everything but the tokens of the rows of `lengths` (width -> row -> length), and the row for chunks."""
        in_use = {width: dict(lengths.get(width, {})) for width in self.runner.partitions}
        own, sources = [], []
        for width, partition in self.runner.partitions.items():
            if partition.sources is not None:
                rows = partition.sources._rows
                groups = {row // width for row in in_use[width]}
                sources.append((rows, {group: int(rows.past[group]) + 1 for group in groups}))
                partition.sources._last[:, rows.tables.counts == 0] = np.nan
            if chunking:
                assert isinstance(self.runner, PagedDecoderRunner)
                in_use[width][self.runner._staging] = int(partition.own.past[self.runner._staging])
            if isinstance(partition.own, GrownRows):
                self._poison_rows(partition.own, in_use[width])
            else:
                own.append((partition.own, in_use[width]))
        if self._own_cache is not None:
            self._poison_blocks(self._own_cache, own)
        if isinstance(self.runner, PagedEncoderDecoderRunner):
            self._poison_blocks(self.runner.sources, sources)

    def _check(self, lengths: Mapping[int, Lengths]) -> None:
        partitions = self.runner.partitions
        if self._own_cache is not None:
            own = [partition.own for partition in partitions.values() if isinstance(partition.own, PagedRows)]
            check_blocks(self._own_cache.pool, [rows.tables for rows in own])
            for rows in own:
                check_written(rows, self._own_cache.pool)
        if isinstance(self.runner, PagedEncoderDecoderRunner):
            sources = [
                partition.sources._rows.tables for partition in partitions.values() if partition.sources is not None
            ]
            check_blocks(self.runner.sources.pool, sources)
        for width, partition in partitions.items():
            for row, length in lengths.get(width, {}).items():
                assert partition.own.past[row] == partition.positions[row] == length

    @property
    def _own_cache(self) -> PagedCache | None:
        """The blocks of the rows' own tokens, where they are in blocks."""
        return self.runner.cache if isinstance(self.runner, PagedDecoderRunner) else self.runner.own

    def _poison_blocks(self, cache: PagedCache, used: Iterable[tuple[PagedRows, Lengths]]) -> None:
        filled = np.zeros(len(cache.pool.users), np.int64)
        for rows, lengths in used:
            for row, length in lengths.items():
                blocks = rows.tables.of(row)
                assert len(blocks) * BLOCK >= length, "a row has tokens without a block"
                there = np.clip(length - BLOCK * np.arange(len(blocks)), 0, BLOCK)
                filled[blocks] = np.maximum(filled[blocks], there)
        unused, partly = filled == 0, np.flatnonzero((filled > 0) & (filled < BLOCK)).tolist()
        for part in cache.parts:
            if part.dtype == np.uint8:
                part[unused] = self._random.integers(0, 256, part[0].shape, np.uint8)
                continue
            part[unused] = np.nan
            for block in partly:
                part[block, :, filled[block] :] = np.nan

    def _poison_rows(self, rows: GrownRows, lengths: Lengths) -> None:
        """What is beyond `past`; and rows that nobody uses, but with numbers that a run can take, as it runs them."""
        for row, past in enumerate(rows.past.tolist()):
            kept = lengths.get(row, 0)
            rows.array[:, row, :, kept:past] = 3.0
            rows.array[:, row, :, past:] = HUGE
            rows._marks[row, kept:] = self._mark  # nobody's, so that nobody takes it for a copy of theirs
            self._mark -= 1
