"""A tuning's trials: what was set, what came of it, and which of them no other beats in both throughput and p99."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hfx.perf.compare.cost import KEPT
from hfx.perf.report.figures import FIGURES, Figure, main
from hfx.perf.results import Group, Result, Run, groups

FINAL = "final"  # the case of the runs that prove the gain


@dataclass(frozen=True)
class Trial:
    """One setting's runs, its throughput (`rate`) and `p99` in milliseconds.

    `verdict` is "before" (the published settings), "chosen", "stopped early", "misses" (too few requests were answered
    as promised), "best" (`best`: on the Pareto front) or "beaten".
    """

    group: Group
    rate: float
    p99: float
    best: bool
    verdict: str

    @property
    def label(self) -> str:
        """Its name in results."""
        return self.group.subject.label

    @property
    def settings(self) -> str:
        """What was set."""
        return ", ".join(f"{name}={value}" for name, value in self.group.subject.settings.items())


def figures(result: Result) -> tuple[Figure, Figure]:
    """What trials are held against each other by: throughput (tokens where texts are written), and p99."""
    return main(result.runs), FIGURES["p99"]


def proof(result: Result) -> Result:
    """A tuning's final rounds alone, the published settings against the best ones; other results as they are."""
    if result.kind != "tune":
        return result
    final = (run for run in result.runs if run.load.case == FINAL)
    return replace(result, runs=tuple(replace(run, load=replace(run.load, case="")) for run in final))


def trials(result: Result) -> list[Trial]:
    """The trials of a tuning that were measured, in order; none of other results."""
    if result.kind != "tune":
        return []
    rate, p99 = figures(result)
    measured = [
        (group, of_rate.median, of_p99.median)
        for group in groups([run for run in result.runs if run.load.case != FINAL])
        if (of_rate := group.spread(rate.of)) and (of_p99 := group.spread(p99.of))
    ]
    full = [(more, less) for group, more, less in measured if _complete(group, result) and _kept(group.runs)]
    found = []
    for group, more, less in measured:
        best = (more, less) in full and not beaten((more, less), full)
        found.append(Trial(group, more, less, best, _verdict(group, result, best)))
    return found


def beaten(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether one of `points` (more is better, less is better) is no worse in both and better in one."""
    return any(each != point and each[0] >= point[0] and each[1] <= point[1] for each in points)


def _verdict(group: Group, result: Result, best: bool) -> str:
    label = group.subject.label
    if label == result.base:
        return "before"
    if label == result.details.get("chosen"):
        return "chosen"
    if not _complete(group, result):
        return "stopped early"
    return "best" if best else "beaten" if _kept(group.runs) else "misses"


def _complete(group: Group, result: Result) -> bool:
    early = result.details.get("stopped early")
    return not isinstance(early, list) or group.subject.label not in early


def _kept(runs: Sequence[Run]) -> bool:
    """Whether enough requests were answered, within the SLO where there is one."""
    return all(run.kept >= KEPT for run in runs)
