"""Whether the best settings are really faster: they and the published ones on two servers, in turn, round by round.

A search takes the highest of many noisy figures, so its own figure proves nothing: the rounds here are new, and a gain
has to exceed what a candidate differs by from one round to the next.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hfx.perf.compare.candidates import Candidate, Case, Session
from hfx.perf.compare.comparison import compare
from hfx.perf.results import Run, Spread
from hfx.perf.results.rounds import spread
from hfx.perf.tuning.score import Score, score
from hfx.perf.tuning.search import uninterrupted
from hfx.perf.tuning.study import PUBLISHED

MIN_ROUNDS, ROUNDS = 3, 5


@dataclass(frozen=True)
class Proof:
    """All runs, the gain round by round (1.1: 10 % more), and by how much a candidate differs between rounds."""

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
    def verdict(self) -> str:
        """The same in a sentence."""
        if self.gain is None:
            return "Not proven, the published settings stay: the gain was not measured. " + "; ".join(self.notes)
        figures = f"x{self.gain.median:.3f} ({self.gain.least:.3f} to {self.gain.most:.3f}, {self.gain.rounds} rounds)"
        if not self.kept:
            return f"Not proven, the published settings stay: the new ones missed the SLO ({figures})."
        proven = "Proven" if self.proven else "Not proven, the published settings stay"
        return f"{proven}: {figures}; from round to round a candidate differs by {100 * self.noise:.1f} %."


def prove(candidates: Sequence[Candidate], cases: Sequence[Case], rounds: int, session: Session) -> Proof:
    """Measure two candidates, the published settings first, for `rounds` rounds of each case.

    Raises KeyboardInterrupt where the session was stopped.
    """
    notes: list[str] = []
    runs = uninterrupted(tuple(compare(candidates, cases, rounds, notes, session)))
    if session.stop.is_set():
        raise KeyboardInterrupt
    return judge([replace(run, round=run.round + 1) for run in runs], candidates[1].label, notes)


def judge(runs: Sequence[Run], best: str, notes: Sequence[str] = ()) -> Proof:
    """What runs of the published settings and of those labelled `best` prove."""
    old, new = _rounds(runs, PUBLISHED), _rounds(runs, best)
    gains = [new[number].figure / old[number].figure for number in old if number in new and old[number].figure]
    steps = [
        abs(after.figure / before.figure - 1)
        for candidate in (old, new)
        for before, after in pairwise(candidate.values())
        if before.figure
    ]
    kept = sum(each.kept for each in new.values()) * 2 > len(new)
    noise = statistics.median(steps) if steps else 0.0
    return Proof(tuple(runs), spread(gains) if len(gains) >= MIN_ROUNDS else None, noise, kept, tuple(notes))


def _rounds(runs: Sequence[Run], label: str) -> dict[int, Score]:
    """The score of each round of one candidate: of the load that it held best."""
    own = [run for run in runs if run.subject.label == label]
    return {number: score([run for run in own if run.round == number]) for number in sorted({r.round for r in own})}
