"""Is it really faster? The published settings and the best ones found, on two servers, in turn, round by round.

Owns the verdict. A search takes the highest of many noisy figures, so that its own figure proves nothing: the rounds
here are new, and what both sides differ by from round to round is what a gain has to exceed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from hfx.perf.compare.comparison import compare
from hfx.perf.compare.side import Case, Session, Side
from hfx.perf.results import Run, Spread, spread
from hfx.perf.tuning.score import Score, score
from hfx.perf.tuning.search import uninterrupted
from hfx.perf.tuning.study import PUBLISHED

LEAST_ROUNDS, ROUNDS = 3, 5
FINAL = "final"  # the case of its runs


@dataclass(frozen=True)
class Proof:
    """All runs, the gain round by round (1.1: 10 % more), and by how much a side differs from one round to the next."""

    runs: tuple[Run, ...]
    gain: Spread | None
    noise: float
    kept: bool
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Better in every round, by more than the noise, and within the SLO."""
        return self.kept and self.gain is not None and self.gain.least > 1 and self.gain.median > 1 + self.noise

    @property
    def words(self) -> str:
        """The verdict in a line."""
        if self.gain is None:
            return "Not proven, the published settings stay: the gain was not measured. " + "; ".join(self.notes)
        figures = f"x{self.gain.median:.3f} ({self.gain.least:.3f} to {self.gain.most:.3f}, {self.gain.rounds} rounds)"
        noise = f"from round to round a side differs by {100 * self.noise:.1f} %"
        if not self.kept:
            return f"Not proven, the published settings stay: the new ones missed the SLO ({figures})."
        if self.proven:
            return f"Proven: {figures}; {noise}."
        return f"Not proven, the published settings stay: {figures}; {noise}."


def prove(
    sides: Sequence[Side], cases: Sequence[Case], rounds: int, session: Session, until: float = math.inf
) -> Proof:
    """Measure two SIDES, the published settings first, for ROUNDS rounds of each of CASES.

    Rounds beyond LEAST_ROUNDS are left out where they would end after UNTIL (time.monotonic). Raises KeyboardInterrupt
    where the session was told to stop.
    """
    notes: list[str] = []
    running = cast("Generator[Run]", compare(sides, cases, rounds, notes, session))
    with closing(running) as turns:  # leaving it early ends the servers
        runs = _in_time(turns, len(sides), until) if len(cases) == 1 else turns
        numbered = [replace(run, round=run.round + 1) for run in uninterrupted(tuple(runs))]
    if session.stop.is_set():
        raise KeyboardInterrupt
    return verdict(numbered, sides[1].label, notes)


def _in_time(turns: Iterator[Run], sides: int, until: float) -> Iterator[Run]:
    """TURNS in whole rounds, as many as there is time for."""
    began = time.monotonic()
    for done, run in enumerate(turns, 1):
        yield run
        rounds, now = done / sides, time.monotonic()
        if rounds >= LEAST_ROUNDS and done % sides == 0 and now + (now - began) / rounds > until:
            return


def verdict(runs: Sequence[Run], best: str, notes: Sequence[str] = ()) -> Proof:
    """What RUNS of the published settings and of those called BEST say."""
    old, new = _rounds(runs, PUBLISHED), _rounds(runs, best)
    common = [number for number in old if number in new]
    ratios = [new[number].figure / old[number].figure for number in common if old[number].figure]
    steps = [
        abs(after.figure / before.figure - 1)
        for side in (old, new)
        for before, after in pairwise(side.values())
        if before.figure
    ]
    kept = sum(found.kept for found in new.values()) * 2 > len(new)
    noise = statistics.median(steps) if steps else 0.0
    gain = spread(ratios) if len(ratios) >= LEAST_ROUNDS else None
    return Proof(tuple(runs), gain, noise, kept, tuple(notes))


def _rounds(runs: Sequence[Run], label: str) -> dict[int, Score]:
    """The score of each round of one side: of the load that it held best."""
    mine = [run for run in runs if run.subject.label == label]
    return {number: score([run for run in mine if run.round == number]) for number in sorted({r.round for r in mine})}
