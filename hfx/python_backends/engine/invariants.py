"""What must hold of the state of an engine between two steps, so that no row is lost, and none has two requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import BrokenState
from .fair_scheduler import FairScheduler
from .jobs import Job, Sequence
from .partition import DecoderPartition
from .prefix_cache import PrefixCache
from .runners import Runner
from .scheduler import Partition, Scheduler


def check(state: FairScheduler, runners: tuple[Runner, ...] = ()) -> None:
    """Raise BrokenState if `state` loses, shares or leaks a row.

    With `runners`, those of the first batches, also raise it if a row's cache has another length than its sequence.
    """
    for batch in state.batches:
        check_batch(batch)
    _require(not state.waiting or not state.idle, "requests wait, and nothing is done")
    check_prefixes(state.prefixes)
    for batch, runner in zip(state.batches, runners, strict=False):
        _check_lengths(batch, runner.partitions)


def check_prefixes(cache: PrefixCache) -> None:
    """Check that memory holds one block each, within the bound, and that no block is known without its predecessors."""
    used = [block.memory for block in cache.saved.values()]
    memory = sorted([*cache.free, *(each for each in used if each is not None)])
    _require(memory == list(range(cache.size)), "memory of the prefix cache is lost, shared or more than there is")
    _require(len(cache.seen) <= cache.most_seen, "too many blocks are known")
    _require(all(block.memory is None for block in cache.seen.values()), "a block that is not saved has memory")
    saved = {0, *(block.number for block in cache.saved.values())}
    known = {*saved, *(block.number for block in cache.seen.values())}
    _require(len(known) == 1 + len(cache.saved) + len(cache.seen), "two blocks have one number")
    _require(all(before in saved for before, _ in cache.saved), "a block is saved without the one before")
    _require(all(before in known for before, _ in cache.seen), "a block is known without the one before")
    for blocks in (cache.saved, cache.seen):
        places = {block.number: place for place, block in enumerate(blocks.values())}
        lasts = all(places.get(before, len(places)) > places[block.number] for (before, _), block in blocks.items())
        _require(lasts, "a block is given up before those behind it")


def check_batch(state: Scheduler) -> None:
    """Do what `check` does, for one batch."""
    assigned = {sequence: partition for partition in state.partitions.values() for sequence in partition.sequences}
    for partition in state.partitions.values():
        _check_partition(partition)
    _check_places(state, assigned)
    _check_rows(state, assigned)
    for sequence, partition in assigned.items():
        _check_sequence(sequence, partition)


def _check_partition(partition: Partition) -> None:
    """Groups are compact except for the known gaps, and each belongs to the sequence that claims it."""
    groups, width = partition.groups, partition.width
    _require(len(groups) <= partition.capacity, f"partition {width} has more groups than it may")
    holes = {group for group, owner in enumerate(groups) if owner is None}
    _require(holes == partition.free_groups, "holes are not as known")
    _require(not groups or groups[-1] is not None, "the last group is a hole")
    claimed = {row: sequence for sequence in partition.sequences for row in sequence.rows}
    rows = sum(len(sequence.rows) for sequence in partition.sequences)
    _require(len(claimed) == rows, "two sequences share a row")
    for row in range(len(groups) * width):
        _require(claimed.get(row) is groups[row // width], f"row {row} of partition {width} is not its owner's")


def _check_places(state: Scheduler, assigned: Mapping[Sequence, Partition]) -> None:
    """A job is in exactly one of waiting, to_prefill, being chunked or having rows, and none of them is over."""
    waiting, to_prefill = list(state.waiting), list(state.to_prefill)
    admitted = list(dict.fromkeys(sequence.job for sequence in assigned))
    chunking = [] if state.chunking is None else [state.chunking]
    everywhere: list[Job] = [*waiting, *to_prefill, *chunking, *admitted]
    _require(len(set(everywhere)) == len(everywhere), "a job is at two places")
    _require(not any(job.over for job in everywhere), "a job is over and not removed")
    _require(not any(sequence.over for sequence in assigned), "a sequence is over and has rows")
    _require(not any(job.admitted for job in waiting), "a job waits that has rows reserved")
    _require(all(job.admitted for job in (*to_prefill, *chunking, *admitted)), "a job goes on without rows")
    _require(all(each in assigned for job in admitted for each in job.unfinished), "a sequence has lost its group")


def _check_rows(state: Scheduler, assigned: Mapping[Sequence, Partition]) -> None:
    """Reserved rows are those of unfinished sequences of admitted jobs."""
    pending = [*state.to_prefill, *([] if state.chunking is None else [state.chunking])]
    reserved = sum(sequence.search.rows for job in pending for sequence in job.unfinished)
    reserved += sum(sequence.search.rows for sequence in assigned)
    _require(state.free_rows == state.slots - reserved, f"{state.free_rows} rows are free, {reserved} are reserved")
    _require(0 <= state.free_rows <= state.slots, f"{state.free_rows} rows are free")


def _check_sequence(sequence: Sequence, partition: Partition) -> None:
    rows = sequence.search.rows
    _require(sequence.width == partition.width, "a sequence is in the wrong partition")
    _require(len(sequence.rows) == rows, "a sequence has too few or too many rows")
    _require(len(sequence.next_inputs) in (0, rows), "a sequence feeds some of its rows only")
    sources, targets = ({pair[at] for pair in sequence.copies} for at in (0, 1))
    _require(not sources & targets, "a row is copied from and to")
    _require(not sequence.prompt_left or not sequence.chosen, "a sequence has chosen before its prompt was fed")


def _check_lengths(state: Scheduler, partitions: Mapping[int, DecoderPartition]) -> None:
    """The cache of each row has as many tokens as its sequence knows of, and the next one is at the next position."""
    for width, partition in state.partitions.items():
        rows = [row for sequence in partition.sequences for row in sequence.rows]
        lengths = [sequence.length for sequence in partition.sequences for _ in sequence.rows]
        if rows:
            cache = partitions[width]
            held = np.array_equal(cache.lengths[rows], lengths) and np.array_equal(cache.positions[rows, 0], lengths)
            _require(held, f"a row's cache in partition {width} has another length")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenState(f"the state of the engine is broken, which is a fault of hfx: {otherwise}")
