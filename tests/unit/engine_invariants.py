"""What is true of the engine's state after every step, as one pure function.

Tests call it from the engine's observer.
"""

from __future__ import annotations

from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.jobs import Job, Sequence
from hfx.python_backends.engine.lanes import Lane
from hfx.python_backends.engine.scheduler import Scheduler


def check(state: FairScheduler) -> None:
    """Raise AssertionError, saying what is wrong, if `state` could lose, share or leak a row."""
    for batch in state.batches:
        check_batch(batch)
    assert not state.waiting or not state.idle, "somebody waits and nothing is done"


def check_batch(state: Scheduler) -> None:
    """As `check`, of one batch."""
    seated = {sequence: lane for lane in state.lanes.values() for sequence in lane.sequences}
    for lane in state.lanes.values():
        _check_lane(lane)
    _check_places(state, seated)
    _check_rows(state, seated)
    for sequence, lane in seated.items():
        _check_sequence(sequence, lane)


def _check_lane(lane: Lane) -> None:
    """Units are compact but for the known holes, and each belongs to the sequence that thinks so."""
    assert len(lane.seats) <= lane.capacity, f"lane {lane.width} has more units than it may"
    assert {unit for unit, taker in enumerate(lane.seats) if taker is None} == lane.holes, "holes are not as known"
    assert not lane.seats or lane.seats[-1] is not None, "the last unit is a hole"
    claimed = {row: sequence for sequence in lane.sequences for row in sequence.rows}
    assert len(claimed) == sum(len(sequence.rows) for sequence in lane.sequences), "two sequences share a row"
    for unit, taker in enumerate(lane.seats):
        for row in range(unit * lane.width, (unit + 1) * lane.width):
            assert claimed.get(row) is taker, f"row {row} of lane {lane.width} is not its taker's"


def _check_places(state: Scheduler, seated: dict[Sequence, Lane]) -> None:
    """A job waits, joins, is being chunked or sits; never two of these, and nobody sits who is over."""
    waiting, joining = list(state.waiting), list(state.joining)
    sitting = list(dict.fromkeys(sequence.job for sequence in seated))
    chunking = [] if state.chunking is None else [state.chunking]
    everywhere: list[Job] = [*waiting, *joining, *chunking, *sitting]
    assert len(set(everywhere)) == len(everywhere), "a job is at two places"
    assert not any(job.over for job in everywhere), "a job is over and still there"
    assert not any(sequence.over for sequence in seated), "a sequence is over and still sits"
    assert not any(job.admitted for job in waiting), "a job waits that has rows reserved"
    assert all(job.admitted for job in (*joining, *chunking, *sitting)), "a job goes on without rows"
    assert all(each in seated for job in sitting for each in job.unfinished), "a sequence has lost its seat"


def _check_rows(state: Scheduler, seated: dict[Sequence, Lane]) -> None:
    """Reserved rows are those of unfinished sequences of admitted jobs."""
    pending = [*state.joining, *([] if state.chunking is None else [state.chunking])]
    reserved = sum(sequence.search.rows for job in pending for sequence in job.unfinished)
    reserved += sum(sequence.search.rows for sequence in seated)
    assert state.free_rows == state.slots - reserved, f"{state.free_rows} rows are free, {reserved} are reserved"
    assert 0 <= state.free_rows <= state.slots, f"{state.free_rows} rows are free"


def _check_sequence(sequence: Sequence, lane: Lane) -> None:
    rows = sequence.search.rows
    assert sequence.width == lane.width, "a sequence sits in the wrong lane"
    assert len(sequence.rows) == rows, "a sequence has too few or too many rows"
    assert len(sequence.feed) in (0, rows), "a sequence feeds some of its rows only"
    sources, targets = ({pair[at] for pair in sequence.copies} for at in (0, 1))
    assert not sources & targets, "a row is copied from and to"
    assert not sequence.prompt_left or not sequence.chosen, "a sequence has chosen before its prompt was fed"
