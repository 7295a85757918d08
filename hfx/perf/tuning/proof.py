"""The proof that settings gain something.

The best of many noisy figures is too high by chance, so a search's own figure proves nothing. The proof measures the
best and the published settings again, in turns on two servers. The gain must exceed the noise between rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

from hfx.perf.compare.candidates import Candidate, Case, Session
from hfx.perf.compare.comparison import compare
from hfx.perf.results import Run
from hfx.perf.rounds import Spread, spread
from hfx.perf.tuning.scores import PUBLISHED, Score, score

MIN_ROUNDS, ROUNDS = 3, 5


def uninterrupted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return `runs`. Raises KeyboardInterrupt if a run was interrupted, so that its figures are not used."""
    if any(run.interrupted for run in runs):
        raise KeyboardInterrupt
    return runs


@dataclass(frozen=True)
class Proof:
    """The comparison of the best with the published settings, under the load that suits the best settings most."""

    runs: tuple[Run, ...]
    gain: Spread | None  # new / published figure over the rounds (1.1: 10 % more); None for too few rounds
    noise: float  # the median relative difference of a candidate from one round to the next
    is_good: bool  # whether the new settings keep the SLO in most rounds
    missed: bool  # whether the published settings don't keep the SLO in most rounds
    better: bool  # whether the new settings also win each round if each candidate has its own best load
    measure: str  # the figure and the load of the gain, in words
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether the new settings are better in every round, by more than the noise, and within the SLO."""
        is_more = self.gain is not None and self.gain.least > 1 and self.gain.median > 1 + self.noise
        return self.is_good and self.better and is_more

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        stay = "Not proven, the published settings stay"
        if self.gain is None:
            return f"{stay}: the gain was not measured. " + "; ".join(self.notes)
        if not self.is_good:
            return f"{stay}: the new ones miss the SLO in most rounds."
        if not self.better:
            return f"{stay}: under another load they do more."
        proven = "Proven" if self.proven else stay
        if self.missed:
            return f"{proven}: the new ones keep the SLO, which the published ones miss."
        figures = f"{self.gain.median:.3g}× ({self.gain.least:.3g} to {self.gain.most:.3g}, {self.gain.rounds} rounds)"
        noise = f"from round to round a candidate differs by {100 * self.noise:.1f} %"
        return f"{proven}: {figures} {self.measure}; {noise}."


def _measure(run: Run) -> str:
    load = replace(run.load, case="").label
    if run.load.kind == "open":
        return f"as fast (p99) at {load}"
    return f"the {'tokens' if run.tokens_per_second else 'requests'}/s with {load}"


def prove(
    candidates: Sequence[Candidate], cases: Sequence[Case], rounds: int, session: Session, until: float = math.inf
) -> Proof:
    """Measure two candidates, the published settings first, for `rounds` rounds of each case.

    No measurement begins after `until` (time.monotonic). Raises KeyboardInterrupt if the session was stopped.
    """
    notes: list[str] = []
    with closing(compare(candidates, cases, rounds, notes, session)) as measured:
        runs: list[Run] = []
        for run in measured:
            runs.append(run)
            if time.monotonic() >= until and len(runs) < len(candidates) * rounds * len(cases):
                notes.append(f"the budget ended the proof after {len(runs)} measurements.")
                break
    uninterrupted(tuple(runs))
    if session.stop.is_set():
        raise KeyboardInterrupt
    return judge([replace(run, round=run.round + 1) for run in runs], candidates[1].label, notes)


def judge(runs: Sequence[Run], label: str, notes: Sequence[str] = ()) -> Proof:
    """Return the proof from `runs` of the published settings and of the settings with this `label`."""
    loads = Counter(each.run.load.label for each in _rounds(runs, label).values())
    load = loads.most_common(1)[0][0] if loads else ""
    same = [run for run in runs if run.load.label == load]
    old, new = _rounds(same, PUBLISHED), _rounds(same, label)
    noise = [
        abs(after.figure / before.figure - 1)
        for candidate in (old, new)
        for before, after in pairwise(candidate.values())
        if before.figure
    ]
    gains = _gains(old, new)
    return Proof(
        tuple(runs),
        spread(gains) if len(gains) >= MIN_ROUNDS else None,
        statistics.median(noise) if noise else 0.0,
        is_good=_is_good(new),
        missed=not _is_good(old),
        better=all(gain > 1 for gain in _gains(_rounds(runs, PUBLISHED), _rounds(runs, label))),
        measure=_measure(same[-1]) if same else "",
        notes=tuple(notes),
    )


def _gains(old: Mapping[int, Score], new: Mapping[int, Score]) -> list[float]:
    return [new[number].figure / old[number].figure for number in old if number in new and old[number].figure]


def _is_good(rounds: Mapping[int, Score]) -> bool:
    return sum(each.is_good for each in rounds.values()) * 2 > len(rounds)


def _rounds(runs: Sequence[Run], label: str) -> dict[int, Score]:
    """Return round -> score of the candidate, under its best load of that round."""
    own = [run for run in runs if run.subject.label == label]
    return {number: score([run for run in own if run.round == number]) for number in sorted({r.round for r in own})}
