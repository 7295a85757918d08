"""The invariants of the engine's state after every step, as one pure function for the engine's observer."""

from __future__ import annotations

from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.jobs import Job, Sequence
from hfx.python_backends.engine.prefix_cache import PrefixCache
from hfx.python_backends.engine.scheduler import Partition, Scheduler


def check(state: FairScheduler) -> None:
    """Raise AssertionError, saying what is wrong, if `state` could lose, share or leak a row."""
    for batch in state.batches:
        check_batch(batch)
    assert not state.waiting or not state.idle, "somebody waits and nothing is done"
    check_prefixes(state.prefixes)


def check_prefixes(cache: PrefixCache) -> None:
    """Check that memory holds one block each, within the bound, and that no block is known without its predecessors."""
    used = [block.memory for block in cache.saved.values()]
    assert sorted([*cache.free, *(memory for memory in used if memory is not None)]) == list(range(cache.size)), (
        "memory of the prefix cache is lost, shared or more than there is"
    )
    assert len(cache.seen) <= cache.most_seen, "too many blocks are known"
    assert all(block.memory is None for block in cache.seen.values()), "a block that is not saved has memory"
    saved = {0, *(block.number for block in cache.saved.values())}
    known = {*saved, *(block.number for block in cache.seen.values())}
    assert len(known) == 1 + len(cache.saved) + len(cache.seen), "two blocks have one number"
    assert all(before in saved for before, _ in cache.saved), "a block is saved without the one before"
    assert all(before in known for before, _ in cache.seen), "a block is known without the one before"
    for blocks in (cache.saved, cache.seen):
        places = {block.number: place for place, block in enumerate(blocks.values())}
        assert all(places.get(before, len(places)) > places[block.number] for (before, _), block in blocks.items()), (
            "a block is given up before those behind it"
        )


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
    assert len(partition.groups) <= partition.capacity, f"partition {partition.width} has more groups than it may"
    assert {group for group, owner in enumerate(partition.groups) if owner is None} == partition.free_groups, (
        "holes are not as known"
    )
    assert not partition.groups or partition.groups[-1] is not None, "the last group is a hole"
    claimed = {row: sequence for sequence in partition.sequences for row in sequence.rows}
    assert len(claimed) == sum(len(sequence.rows) for sequence in partition.sequences), "two sequences share a row"
    for group, owner in enumerate(partition.groups):
        for row in range(group * partition.width, (group + 1) * partition.width):
            assert claimed.get(row) is owner, f"row {row} of partition {partition.width} is not its owner's"


def _check_places(state: Scheduler, assigned: dict[Sequence, Partition]) -> None:
    """A job is in exactly one of waiting, to_prefill, being chunked or seated, and no seated job is over."""
    waiting, to_prefill = list(state.waiting), list(state.to_prefill)
    admitted = list(dict.fromkeys(sequence.job for sequence in assigned))
    chunking = [] if state.chunking is None else [state.chunking]
    everywhere: list[Job] = [*waiting, *to_prefill, *chunking, *admitted]
    assert len(set(everywhere)) == len(everywhere), "a job is at two places"
    assert not any(job.over for job in everywhere), "a job is over and still there"
    assert not any(sequence.over for sequence in assigned), "a sequence is over and still sits"
    assert not any(job.admitted for job in waiting), "a job waits that has rows reserved"
    assert all(job.admitted for job in (*to_prefill, *chunking, *admitted)), "a job goes on without rows"
    assert all(each in assigned for job in admitted for each in job.unfinished), "a sequence has lost its group"


def _check_rows(state: Scheduler, assigned: dict[Sequence, Partition]) -> None:
    """Reserved rows are those of unfinished sequences of admitted jobs."""
    pending = [*state.to_prefill, *([] if state.chunking is None else [state.chunking])]
    reserved = sum(sequence.search.rows for job in pending for sequence in job.unfinished)
    reserved += sum(sequence.search.rows for sequence in assigned)
    assert state.free_rows == state.slots - reserved, f"{state.free_rows} rows are free, {reserved} are reserved"
    assert 0 <= state.free_rows <= state.slots, f"{state.free_rows} rows are free"


def _check_sequence(sequence: Sequence, partition: Partition) -> None:
    rows = sequence.search.rows
    assert sequence.width == partition.width, "a sequence is in the wrong partition"
    assert len(sequence.rows) == rows, "a sequence has too few or too many rows"
    assert len(sequence.next_inputs) in (0, rows), "a sequence feeds some of its rows only"
    sources, targets = ({pair[at] for pair in sequence.copies} for at in (0, 1))
    assert not sources & targets, "a row is copied from and to"
    assert not sequence.prompt_left or not sequence.chosen, "a sequence has chosen before its prompt was fed"
