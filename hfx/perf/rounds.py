"""Grouping the rounds of a measurement: medians over rounds, and ratios within rounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hfx.perf.results import PHASES, Load, Run, Step, Subject

Figure = Callable[[Run], float | None]


@dataclass(frozen=True)
class Spread:
    """A figure over several rounds: median, minimum (`least`) and maximum (`most`)."""

    median: float
    least: float
    most: float
    rounds: int


@dataclass(frozen=True)
class Group:
    """The rounds of one subject under one load, in order."""

    subject: Subject
    load: Load
    runs: tuple[Run, ...]

    def spread(self, figure: Figure) -> Spread | None:
        """Return `figure` over the rounds in which it was measured; None if there is no such round."""
        return spread([value for run in self.runs if (value := figure(run)) is not None])

    def median(self, figure: Figure) -> float | None:
        """Return the median of `figure`; None if it was not measured."""
        found = self.spread(figure)
        return found.median if found else None


def spread(values: Sequence[float]) -> Spread | None:
    """Return the Spread of `values`; None if there are no values."""
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


def groups(runs: Sequence[Run]) -> list[Group]:
    """Group `runs` by subject and load, in order of first appearance. `Load.limit` is ignored."""
    found: dict[tuple[str, str, str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        subject = run.subject
        found[subject.label, subject.model, subject.protocol, subject.tool, run.load.label].append(run)
    return [
        Group(rounds[0].subject, rounds[0].load, tuple(sorted(rounds, key=lambda run: run.round)))
        for rounds in found.values()
    ]


def ratios(group: Group, base: Group, figure: Figure) -> Spread | None:
    """Return the ratios of `figure` in `group` to `base` within each round; None without common rounds."""
    of_base = {run.round: figure(run) for run in base.runs}
    pairs = ((figure(run), of_base.get(run.round)) for run in group.runs)
    return spread([value / partner for value, partner in pairs if value is not None and partner])


def steps(runs: Sequence[Run]) -> list[Step]:
    """Return the server's steps over several rounds: means over all requests, in the order of the first round."""
    found: dict[str, list[Step]] = {}
    for run in runs:
        for step in run.server.steps if run.server else ():
            found.setdefault(step.model, []).append(step)
    return [_joined(same) for same in found.values()]


def _joined(same: Sequence[Step]) -> Step:
    requests, executions = sum(step.requests for step in same), sum(step.executions for step in same)

    def average(phase: str) -> float:
        return float(sum(getattr(step, phase) * step.requests for step in same) / requests) if requests else 0.0

    batch = requests / executions if executions else 0.0
    return Step(same[0].model, requests, executions, batch, **{phase: average(phase) for phase in PHASES})
