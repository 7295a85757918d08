"""Candidates measured under every load, in turn, round by round; one that can't be measured becomes a note."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

import psutil

from hfx.errors import HfxError, LoadFailed
from hfx.perf.compare.candidates import Candidate, Case, Measure, Session
from hfx.perf.machine import machine
from hfx.perf.results import Result, Run

SHARE_OF_MEMORY = 0.8  # of what is free now


def compare(
    candidates: Sequence[Candidate],
    cases: Sequence[Case],
    rounds: int,
    notes: list[str],
    session: Session | None = None,
) -> Iterator[Run]:
    """The runs of all candidates under all loads as they come; `notes` gets a line for each that was not measured.

    All candidates are open at once where the memory allows it, idle until their turn; else one after the other.
    """
    session = session or Session()
    with ExitStack() as servers:
        if fit_together(candidates):
            measures = _opened(candidates, session, servers, notes)
        else:
            notes.append("The candidates do not fit into memory together: each was started for its turn.")
            measures = {each.label: _opened_for_its_turn(each, session) for each in candidates}
        for case in cases:
            load = f", {case.load_label}," if len(cases) > 1 else ""
            yield from _interleaved(measures, case, rounds, notes, session.stop, load)


def fit_together(candidates: Sequence[Candidate]) -> bool:
    """Whether there is memory for all candidates at the same time."""
    available: int = psutil.virtual_memory().available
    return sum(each.memory for each in candidates) <= SHARE_OF_MEMORY * available


def result_of(
    title: str, command: str, runs: Sequence[Run], notes: Sequence[str], candidates: Sequence[Candidate]
) -> Result:
    """`runs` as a result; ratios are to the first candidate that has one. Raises LoadFailed where there is no run."""
    if not runs:
        raise LoadFailed("No candidate could be measured:\n" + "\n".join(notes), "See the reasons above.")
    measured = {run.subject.label for run in runs}
    return Result(
        kind="compare",
        title=title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        runs=tuple(runs),
        base=next(each.label for each in candidates if each.label in measured),
        notes=tuple(notes),
    )


def one_line(error: HfxError) -> str:
    """The error's message in one line, for a note."""
    return " ".join(error.message.split())


def _opened(
    candidates: Sequence[Candidate], session: Session, servers: ExitStack, notes: list[str]
) -> dict[str, Measure]:
    measures: dict[str, Measure] = {}
    for each in candidates:
        try:
            measures[each.label] = servers.enter_context(each.opened(session))
        except HfxError as error:
            notes.append(f"{each.label} was not run: {one_line(error)}")
    return measures


def _opened_for_its_turn(candidate: Candidate, session: Session) -> Measure:
    def measure(case: Case, number: int) -> Run:
        with candidate.opened(session) as measured:
            return measured(case, number)

    return measure


def _interleaved(
    measures: Mapping[str, Measure], case: Case, rounds: int, notes: list[str], stop: threading.Event, load: str
) -> Iterator[Run]:
    """The runs of one load: A B C, then B C A, then C A B, so that each goes first as often as the others.

    A candidate that fails is left out from there on; the rounds that it finished stay. The turns end where `stop` is
    set; the run in which that happens is still yielded.
    """
    left = list(measures)
    for number in range(rounds):
        start = number % len(left) if left else 0
        for label in (*left[start:], *left[:start]):
            if stop.is_set():
                return
            try:
                yield measures[label](case, number)
            except HfxError as error:
                left.remove(label)
                done = f"measured in {number} round{'s' * (number > 1)} only" if number else "not measured"
                notes.append(f"{label}{load} was {done}: {one_line(error)}")
