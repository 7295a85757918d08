"""The search for better settings, and the proof that the best ones gain something.

Optuna proposes settings (TPE sampler) and prunes trials (asynchronous successive halving, which needs a single
objective: the throughput within the SLO). A trial is measured RUNGS times on one server, each time FACTOR times as
long, until Optuna prunes it. A budget of seconds ends the search.

The best of many noisy figures is too high by chance, so the search's own figure proves nothing. The proof measures the
best and the published settings again, in turns on two servers; the gain must exceed the noise between rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import optuna

from hfx.errors import HfxError
from hfx.perf.compare.candidates import Candidate, Case, Session, one_line
from hfx.perf.compare.comparison import compare
from hfx.perf.results import Run
from hfx.perf.rounds import Spread, spread
from hfx.perf.tuning.space import Settings
from hfx.perf.tuning.study import FACTOR, PUBLISHED, Score, Study, Trial, score

RUNGS = 3  # measurements of a trial, each FACTOR times as long as the one before
# Seconds of a measurement: of any at least, of the first one, which plans the budget, and of the longest one.
SHORTEST, FIRST, LONGEST = 0.5, 1.0, 10.0
SLOW_LONGEST = 30.0  # as LONGEST, if a request takes seconds
REQUESTS = 20  # wanted in the shortest measurement
PROOF_SHARE, TRIAL_SHARE = 0.25, 0.05  # shares of the budget: all measurements of the proof, those of a full trial

Measure = Callable[[float], tuple[Run, ...]]  # measures each load for so many seconds; a run for each
Open = Callable[[str, Settings], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Budget:
    """How a budget is spent, in seconds.

    `seconds` is the length of a trial's longest measurement, for each of `loads` loads. `overhead` is the time to start
    and end a server, `margin` the time around a measurement (warm-up, last answers, the server's metrics). `rounds` is
    the number of rounds of the proof.
    """

    seconds: float
    loads: int
    rounds: int
    overhead: float
    margin: float

    @property
    def rungs(self) -> tuple[float, ...]:
        """The lengths of a trial's measurements in turn."""
        return tuple(max(SHORTEST, self.seconds / FACTOR ** (RUNGS - 1 - n)) for n in range(RUNGS))

    @property
    def proof(self) -> float:
        """Seconds of the proof: two candidates, each under the best load of either."""
        return 2 * self.overhead + 2 * self.rounds * min(self.loads, 2) * (self.seconds + self.margin)

    @property
    def least(self) -> float:
        """The smallest total in seconds: the first measurement, two full trials, and the proof."""
        trial = self.overhead + sum(map(self.measurement, range(RUNGS)))
        return self.overhead + self.loads * FIRST + 2 * trial + self.proof

    def measurement(self, rung: int) -> float:
        """Seconds of a trial's measurement number `rung`, of all loads."""
        return self.loads * (self.rungs[rung] + self.margin)

    def allows(self, rung: int, until: float, overhead: float = 0.0) -> bool:
        """Whether `overhead`, measurement number `rung` and then the proof end before `until` (time.monotonic)."""
        return time.monotonic() + overhead + self.measurement(rung) + self.proof <= until


def budget(runs: Sequence[Run], overhead: float, margin: float, total: float, rounds: int) -> Budget:
    """How to spend `total` seconds. `runs` are a measurement of FIRST seconds for each load.

    Slow requests lengthen the measurements if the total allows it. The `least` of the result may exceed `total`.
    """
    loads = len(runs)
    whole_trial = sum(FACTOR**-n for n in range(RUNGS))
    affordable = min(PROOF_SHARE * total / (2 * rounds * min(loads, 2)), TRIAL_SHARE * total / (loads * whole_trial))
    usual = max(FIRST, min(LONGEST, affordable))
    slow = min(FACTOR ** (RUNGS - 1) * REQUESTS / min(run.throughput for run in runs), SLOW_LONGEST)
    budgets = [Budget(length, loads, rounds, overhead, margin) for length in (max(usual, slow), usual, FIRST)]
    return next((each for each in budgets if each.least <= total), budgets[-1])


def first(study: Study, budget: Budget, measure: Measure) -> Trial:
    """Measure the published settings in full length, on a running server. Raises whatever `measure` raises."""
    proposal = study.ask()
    assert proposal is not None and study.space.settings(proposal.params) == study.space.old
    return _measured(study, proposal, budget, math.inf, lambda label, settings: nullcontext(measure))


def search(
    study: Study, budget: Budget, until: float, open_trial: Open, max_trials: float = math.inf
) -> Iterator[Trial]:
    """Measure one proposal after the other, until only the proof's time is left, all are tried, or `max_trials` are.

    Each trial is in the study when it is yielded. An HfxError during a measurement makes the trial a failed one. After
    an interrupt, its settings are proposed again.
    """
    while len(study.trials) < min(max_trials, study.space.size) and budget.allows(0, until, budget.overhead):
        proposal = study.ask()
        if proposal is None:
            return
        began = time.monotonic()
        trial = _measured(study, proposal, budget, until, open_trial)
        overhead = time.monotonic() - began - sum(map(budget.measurement, range(RUNGS)))
        budget = replace(budget, overhead=max(budget.overhead, overhead))
        yield trial


def _measured(study: Study, proposal: optuna.Trial, budget: Budget, until: float, open_trial: Open) -> Trial:
    settings = study.space.settings(proposal.params)
    is_first = not study.trials  # the published settings: never pruned, and a failure ends the search
    runs = tuple[Run, ...]()
    try:
        with open_trial(study.next_label, settings) as measure:
            for rung, seconds in enumerate(budget.rungs):
                runs = uninterrupted(measure(seconds))
                proposal.report(score(runs).value, FACTOR**rung)
                more = rung < RUNGS - 1 and not is_first
                if more and (proposal.should_prune() or not budget.allows(rung + 1, until)):
                    return study.keep(proposal, "pruned", runs)
        return study.keep(proposal, "complete", runs)
    except HfxError as error:
        if is_first:
            raise
        return study.keep(proposal, "failed", (), one_line(error))


def uninterrupted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """`runs`. Raises KeyboardInterrupt if one was interrupted, so that its figures are not used."""
    if any(run.interrupted for run in runs):
        raise KeyboardInterrupt
    return runs


# The proof

MIN_ROUNDS, ROUNDS = 3, 5


@dataclass(frozen=True)
class Proof:
    """The comparison of the best settings with the published ones, under the load that suits the best ones most."""

    runs: tuple[Run, ...]
    gain: Spread | None  # new / published figure over the rounds (1.1: 10 % more); None for too few rounds
    noise: float  # the median relative difference of a candidate from one round to the next
    kept: bool  # whether the new settings keep the SLO in most rounds
    missed: bool  # whether the published ones don't
    better: bool  # whether the new ones win each round also if each candidate has its own best load
    measure: str  # the figure and the load of the gain, in words
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Better in every round, by more than the noise, and within the SLO."""
        is_more = self.gain is not None and self.gain.least > 1 and self.gain.median > 1 + self.noise
        return self.kept and self.better and is_more

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        stay = "Not proven, the published settings stay"
        if self.gain is None:
            return f"{stay}: the gain was not measured. " + "; ".join(self.notes)
        if not self.kept:
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
    """The proof from `runs` of the published settings and of those with this `label`."""
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
        kept=_is_kept(new),
        missed=not _is_kept(old),
        better=all(gain > 1 for gain in _gains(_rounds(runs, PUBLISHED), _rounds(runs, label))),
        measure=_measure(same[-1]) if same else "",
        notes=tuple(notes),
    )


def _gains(old: Mapping[int, Score], new: Mapping[int, Score]) -> list[float]:
    return [new[number].figure / old[number].figure for number in old if number in new and old[number].figure]


def _is_kept(rounds: Mapping[int, Score]) -> bool:
    return sum(each.kept for each in rounds.values()) * 2 > len(rounds)


def _rounds(runs: Sequence[Run], label: str) -> dict[int, Score]:
    """Round -> score of the candidate, under its best load of that round."""
    own = [run for run in runs if run.subject.label == label]
    return {number: score([run for run in own if run.round == number]) for number in sorted({r.round for r in own})}
