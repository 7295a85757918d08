"""The search and its proof.

Optuna proposes, short measurements come before long ones, and a budget of seconds ends it. One objective, because
Optuna prunes only then: what is done within the SLO, by a TPE sampler and asynchronous successive halving. A trial's
server is started once; the next, longer measurement is made while it runs.

A search takes the highest of many noisy figures, so its own figure proves nothing: the proof's rounds are new, with the
best settings and the published ones on two servers, in turn; a gain has to exceed what a candidate differs by from one
round to the next.
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
SHORTEST, FIRST, LONGEST = 0.5, 1.0, 10.0  # seconds: of any measurement; of the first look; of the longest measurement
SLOW_LONGEST = 30.0  # seconds of the longest measurement of requests that take seconds
REQUESTS = 20  # that the shortest measurement has to hold
PROOF_SHARE, TRIAL_SHARE = 0.25, 0.05  # of the budget: for the proof's measurements, and for those of one whole trial

Measure = Callable[[float], tuple[Run, ...]]  # seconds of each load -> a run of each
Open = Callable[[str, Settings], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Budget:
    """How a budget is spent, in seconds.

    `seconds` is the longest measurement of each of `loads`, `overhead` what a server's start and end take, `margin`
    what goes on around a measurement (warm-up, last answers, the server's figures), `rounds` those of the proof.
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
        """What the proof takes: of two candidates, under the best load of each."""
        return 2 * self.overhead + 2 * self.rounds * min(self.loads, 2) * (self.seconds + self.margin)

    @property
    def least(self) -> float:
        """The smallest total: a first look, two trials, and the proof."""
        trial = self.overhead + sum(map(self.measurement, range(RUNGS)))
        return self.overhead + self.loads * FIRST + 2 * trial + self.proof

    def measurement(self, rung: int) -> float:
        """What one of a trial's measurements takes."""
        return self.loads * (self.rungs[rung] + self.margin)

    def allows(self, rung: int, until: float, overhead: float = 0.0) -> bool:
        """Whether a measurement, after `overhead`, and then the proof end before `until` (time.monotonic)."""
        return time.monotonic() + overhead + self.measurement(rung) + self.proof <= until


def budget(runs: Sequence[Run], overhead: float, margin: float, total: float, rounds: int) -> Budget:
    """The budget of `total` seconds, where FIRST seconds of each load gave `runs`. Its `least` may exceed `total`.

    Slow requests lengthen the measurements where the total allows it.
    """
    loads = len(runs)
    whole_trial = sum(FACTOR**-n for n in range(RUNGS))
    affordable = min(PROOF_SHARE * total / (2 * rounds * min(loads, 2)), TRIAL_SHARE * total / (loads * whole_trial))
    usual = max(FIRST, min(LONGEST, affordable))
    slow = min(FACTOR ** (RUNGS - 1) * REQUESTS / min(run.throughput for run in runs), SLOW_LONGEST)
    budgets = [Budget(length, loads, rounds, overhead, margin) for length in (max(usual, slow), usual, FIRST)]
    return next((each for each in budgets if each.least <= total), budgets[-1])


def first(study: Study, budget: Budget, measure: Measure) -> Trial:
    """Measure what is published, in full length, on a server that runs already. Raises what goes wrong."""
    proposal = study.ask()
    assert proposal is not None and study.space.settings(proposal.params) == study.space.old
    return _measured(study, proposal, budget, math.inf, lambda label, settings: nullcontext(measure))


def search(
    study: Study, budget: Budget, until: float, open_trial: Open, max_trials: float = math.inf
) -> Iterator[Trial]:
    """Measure one proposal after the other, until only the proof's time, no choices or `max_trials` are left.

    Each trial is in the study when it is yielded. An HfxError while it is measured is its failure; an interrupt leaves
    it to be measured again.
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
    is_first = not study.trials  # what is published is never pruned, and must be measurable
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
    """`runs`, all in full length. Raises KeyboardInterrupt where one was ended early: its figures are not used."""
    if any(run.interrupted for run in runs):
        raise KeyboardInterrupt
    return runs


# The proof

MIN_ROUNDS, ROUNDS = 3, 5


@dataclass(frozen=True)
class Proof:
    """All runs, the gain round by round (1.1: 10 % more), and by how much a candidate differs between rounds.

    The gain is of one load, which the new settings hold best. `kept` says whether they keep the SLO there, `missed`
    whether the published ones don't, `better` whether they do more than those do under their own best load. `measure`
    says what the gain is of, and under which load.
    """

    runs: tuple[Run, ...]
    gain: Spread | None
    noise: float
    kept: bool
    missed: bool
    better: bool
    measure: str
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Better in every round, by more than the noise, and within the SLO."""
        is_more = self.gain is not None and self.gain.least > 1 and self.gain.median > 1 + self.noise
        return self.kept and self.better and is_more

    @property
    def verdict(self) -> str:
        """The same in a sentence."""
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

    What has not begun by `until` (time.monotonic) is left out. Raises KeyboardInterrupt where the session was stopped.
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
    """What runs of the published settings and of those with this `label` prove."""
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
    """The score of each round of one candidate: of the load that it held best."""
    own = [run for run in runs if run.subject.label == label]
    return {number: score([run for run in own if run.round == number]) for number in sorted({r.round for r in own})}
