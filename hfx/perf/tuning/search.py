"""The search: Optuna proposes, short measurements come before long ones, and the budget ends it.

One objective, because Optuna prunes only then: what is done within the SLO, by a TPE sampler and asynchronous
successive halving (a trial's server is started once; the next, longer measurement is made while it runs). The front of
throughput against latency is taken from all trials afterwards, which costs nothing. Knows no server: a trial is opened
by the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import optuna

from hfx.errors import HfxError
from hfx.perf.results import Run
from hfx.perf.tuning.pace import FACTOR, RUNGS, Clock
from hfx.perf.tuning.score import score
from hfx.perf.tuning.space import Settings
from hfx.perf.tuning.study import Study, Trial

STALE = 100  # random proposals in turn that were tried: there is nothing new

Measure = Callable[[float], tuple[Run, ...]]  # seconds of each load -> a run of each
Open = Callable[[str, Settings], AbstractContextManager[Measure]]


def first(study: Study, clock: Clock, measure: Measure) -> Trial:
    """Measure what is published, in full length, on a server that runs already. Raises what goes wrong."""
    proposal = _proposal(study)
    assert proposal is not None and study.space.settings(proposal.params) == study.space.old
    return _measured(study, proposal, clock, lambda label, settings: nullcontext(measure))[0]


def search(study: Study, clock: Clock, open_trial: Open, most: float = math.inf) -> Iterator[Trial]:
    """Measure one proposal after the other, until the time, the choices or so many trials in all are used up.

    Each trial is in the study when it is yielded. An HfxError while it is measured is its failure; an interrupt leaves
    it to be measured again.
    """
    overhead = clock.pace.overhead
    while len(study.trials) < min(most, study.space.size) and clock.allows_trial(overhead):
        proposal = _proposal(study)
        if proposal is None:
            return
        began = time.monotonic()
        trial, measured = _measured(study, proposal, clock, open_trial)
        overhead = max(overhead, time.monotonic() - began - measured)
        yield trial


def _proposal(study: Study) -> optuna.Trial | None:
    """The next settings that were not tried; None where only such are left."""
    found = study.ask(at_random=False)
    for _ in range(STALE):
        if found is not None:
            break
        found = study.ask(at_random=True)
    return found


def _measured(study: Study, proposal: optuna.Trial, clock: Clock, open_trial: Open) -> tuple[Trial, float]:
    """The trial, and the seconds that were spent on measurements."""
    settings = study.space.settings(proposal.params)
    whole = study.old is None  # what is published is never given up
    spent, runs = 0.0, tuple[Run, ...]()
    try:
        with open_trial(study.next_label(settings), settings) as measure:
            for rung, seconds in enumerate(clock.pace.rungs):
                began = time.monotonic()
                runs = uninterrupted(measure(seconds))
                spent += time.monotonic() - began
                proposal.report(score(runs).value, FACTOR**rung)
                more = rung < RUNGS - 1
                if more and not whole and (proposal.should_prune() or not clock.allows(rung + 1)):
                    return study.keep(proposal, "pruned", runs), spent
        return study.keep(proposal, "complete", runs), spent
    except HfxError as error:
        if whole:
            raise  # what is published can't be measured: there is nothing to hold others against
        return study.keep(proposal, "failed", (), error.message), spent


def uninterrupted(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """RUNS, all in full length. Raises KeyboardInterrupt where one was ended early: its figures are not used."""
    if any(run.interrupted for run in runs):
        raise KeyboardInterrupt
    return runs
