"""A tuning's trials: what was set, what came of it, and which of them no other beats in both throughput and p99."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hfx.perf.compare.cost import KEPT
from hfx.perf.report.figures import FIGURES, Figure, main
from hfx.perf.results import Group, Result, groups
from hfx.perf.tuning.settings import words

FINAL = "final"  # the case of the runs that prove the gain


@dataclass(frozen=True)
class Trial:
    """The runs of some `settings`, their throughput (`rate`) and `p99` in milliseconds.

    `verdict` is "before" (the published settings), "chosen", "stopped early", "misses" (too few requests were answered
    as promised), "best" (`best`: on the Pareto front) or "beaten".
    """

    label: str
    settings: str
    group: Group
    rate: float
    p99: float
    best: bool
    verdict: str


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
    early = result.details.get("stopped early")
    measured = [
        (group, (more, less), _fault(group, early if isinstance(early, list) else []))
        for group in groups([run for run in result.runs if run.load.case != FINAL])
        if (more := group.median(rate.of)) is not None and (less := group.median(p99.of)) is not None
    ]
    full = [point for _, point, fault in measured if not fault]
    names = {result.details.get("chosen"): "chosen", result.base: "before"}
    found = []
    for group, point, fault in measured:
        label, best = group.subject.label, not fault and not beaten(point, full)
        verdict = names.get(label) or fault or ("best" if best else "beaten")
        found.append(Trial(label, words(group.subject.settings), group, *point, best, verdict))
    return found


def beaten(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether one of `points` (more is better, less is better) is no worse in both and better in one."""
    return any(each != point and each[0] >= point[0] and each[1] <= point[1] for each in points)


def _fault(group: Group, early: Sequence[object]) -> str:
    """Why these settings can't be the best; empty where they were measured in full and held."""
    if group.subject.label in early:
        return "stopped early"
    return "" if all(run.kept >= KEPT for run in group.runs) else "misses"
