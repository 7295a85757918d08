"""A tuning's trials: which settings were tried, and which of them nothing else beats in both throughput and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.report.figures import FIGURES, Figure, error_share, main
from hfx.perf.report.numbers import NOTHING, heading, spread
from hfx.perf.report.table import Table
from hfx.perf.results.schema import Result
from hfx.perf.results.summary import Group, groups

KEPT = 0.99  # the share of requests that must be answered as promised
FINAL = "final"  # the case of the runs that prove the gain


@dataclass(frozen=True)
class Trial:
    """One setting's runs: how much it answered, how long its slow requests took, and what became of it.

    `verdict` is "chosen", "before" (the old settings), "stopped early", "best" (of the front), "misses" (too few
    requests were answered as promised) or "beaten"; `best` holds for all of the front, whatever became of them.
    """

    group: Group
    more: float
    less: float
    best: bool
    verdict: str

    @property
    def settings(self) -> str:
        """What was set, in words."""
        return ", ".join(f"{name}={value}" for name, value in self.group.subject.settings.items())


def figures(result: Result) -> tuple[Figure, Figure]:
    """What trials are held against each other by: tokens a second where texts are written, and p99."""
    return main(result.runs), FIGURES["p99"]


def trials(result: Result) -> tuple[Trial, ...]:
    """The trials of a tuning in order; none of other results. Those of a trial that failed have no latency."""
    if result.kind != "tune":
        return ()
    more, less = figures(result)
    measured = []
    for group in groups([run for run in result.runs if run.load.case != FINAL]):
        of_more, of_less = group.spread(more.of), group.spread(less.of)
        if of_more and of_less:
            measured.append((group, of_more.median, of_less.median))
    # What was given up after a second, or failed its callers, can beat nobody.
    rivals = [(gained, waited) for group, gained, waited in measured if _whole(group, result) and _kept(group)]
    found = []
    for group, gained, waited in measured:
        best = (gained, waited) in rivals and not beaten((gained, waited), rivals)
        found.append(Trial(group, gained, waited, best, _verdict(group, result, best)))
    return tuple(found)


def beaten(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether one of POINTS (more is better, less is better) is no worse in both and better in one."""
    return any(each != point and each[0] >= point[0] and each[1] <= point[1] for each in points)


def _verdict(group: Group, result: Result, best: bool) -> str:
    label = group.subject.label
    if label == result.base:
        return "before"
    if label == result.details.get("chosen"):
        return "chosen"
    if not _whole(group, result):
        return "stopped early"
    return "best" if best else "beaten" if _kept(group) else "misses"


def _whole(group: Group, result: Result) -> bool:
    """Whether a trial was measured to its end."""
    early = result.details.get("stopped early")
    return not isinstance(early, list) or group.subject.label not in early


def _kept(group: Group) -> bool:
    """Whether enough requests were answered, within the SLO where there is one."""
    return all((1 - (error_share(run) or 0.0) if run.goodput is None else run.goodput) >= KEPT for run in group.runs)


def trials_table(result: Result) -> Table:
    """Every trial with its settings and verdict."""
    found = trials(result)
    more, less = figures(result)
    rows = tuple(
        (
            trial.group.subject.label,
            trial.settings or NOTHING,
            trial.verdict,
            spread(trial.group.spread(more.of), more.unit),
            spread(trial.group.spread(less.of), less.unit),
        )
        for trial in found
    )
    columns = ("trial", "settings", "verdict", *(heading(figure.title, figure.unit) for figure in (more, less)))
    return Table("Trials", columns, rows, words=3)
