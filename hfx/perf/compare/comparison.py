"""Sides measured under every load, in turn, round by round; who can't be measured becomes a note.

Owns the order of the work and whether the sides run at the same time. It must not know what they are compared for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import psutil

from hfx.errors import HfxError, LoadFailed
from hfx.perf.compare.interleave import Way, interleave, one_line
from hfx.perf.compare.side import Case, Measure, Session, Side
from hfx.perf.results import Run

SHARE_OF_MEMORY = 0.8  # of what is free now


def compare(
    sides: Sequence[Side], cases: Sequence[Case], rounds: int, notes: list[str], session: Session | None = None
) -> Iterator[Run]:
    """The runs of all sides under all loads as they come; NOTES gets a line for each that was not measured, and why.

    All sides are opened at once where the memory allows it, idle until it is their turn; else one after the other.
    """
    session = session or Session()
    if fit_together(sides):
        yield from _side_by_side(sides, cases, rounds, notes, session)
    else:
        notes.append("The sides do not fit into memory together: each was started for its turn and ended after it.")
        yield from _one_by_one(sides, cases, rounds, notes, session)


def fit_together(sides: Sequence[Side]) -> bool:
    """Whether there is room for all sides at the same time."""
    available: int = psutil.virtual_memory().available
    return sum(side.memory for side in sides) <= SHARE_OF_MEMORY * available


def check_measured(runs: Sequence[Run], notes: Sequence[str]) -> None:
    """Raise LoadFailed with the reasons where there is not one run."""
    if not runs:
        raise LoadFailed("No side could be measured:\n" + "\n".join(notes), "See the reasons above.")


def base_label(sides: Sequence[Side], runs: Sequence[Run]) -> str:
    """The label that ratios are held against: of the first side that has a run."""
    measured = {run.subject.label for run in runs}
    return next((side.label for side in sides if side.label in measured), "")


def _side_by_side(
    sides: Sequence[Side], cases: Sequence[Case], rounds: int, notes: list[str], session: Session
) -> Iterator[Run]:
    with ExitStack() as stack:
        ready: dict[str, Measure] = {}
        for side in sides:
            try:
                ready[side.label] = stack.enter_context(side.opened(session))
            except HfxError as error:
                notes.append(f"{side.label} was not run: {one_line(error)}")
        for case in cases:
            ways = [Way(_named(label, case, cases), partial(measure, case)) for label, measure in ready.items()]
            yield from interleave(ways, rounds, notes, session.stop)


def _one_by_one(
    sides: Sequence[Side], cases: Sequence[Case], rounds: int, notes: list[str], session: Session
) -> Iterator[Run]:
    gone: set[str] = set()  # what can't be opened is tried once

    def measured(side: Side, case: Case, number: int) -> Run:
        with ExitStack() as stack:
            try:
                measure = stack.enter_context(side.opened(session))
            except HfxError:
                gone.add(side.label)
                raise
            return measure(case, number)

    for case in cases:
        left = [side for side in sides if side.label not in gone]
        ways = [Way(_named(side.label, case, cases), partial(measured, side, case)) for side in left]
        yield from interleave(ways, rounds, notes, session.stop)


def _named(label: str, case: Case, cases: Sequence[Case]) -> str:
    """A side in notes, with its load where there are several."""
    return label if len(cases) == 1 else f"{label}, {case.load_label},"
