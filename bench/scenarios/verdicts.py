"""What the runs of a scenario say: ratios to peers, goals met or missed, and one table of all cases.

Ratios are taken round by round. It must not know how the runs were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bench import goals
from bench.limit import rows_a_step
from bench.scenarios.scenario import IN_PROCESS, Case, Goal, Key, Scenario, key_of, quick
from hfx.perf.report.figures import FIGURES, Figure
from hfx.perf.report.numbers import NOTHING, heading, ratio_spread, spread
from hfx.perf.report.tables import Table
from hfx.perf.results import Group, Result, Run, Spread, ratios
from hfx.perf.results import spread as spread_of

Groups = dict[tuple[Key, str], Group]


def pace(run: Run) -> float | None:
    """Requests a second from the first one's time to the last answer.

    Of requests that come at their times, a run's throughput is that between the first answer and the last: whoever
    answers in a few large batches would seem to answer faster than it is asked.
    """
    if run.load.kind != "open":
        return run.throughput
    return run.requests.succeeded / run.seconds if run.seconds else None


PACE = Figure("pace", "requests/s to the last answer", "/s", "more", pace)
BATCH = Figure("together", "batch", "rows", "more", rows_a_step)
LIMIT = Figure("roofline", "of the limit", "share", "more", lambda run: run.roofline.share if run.roofline else None)
OWN = {figure.name: figure for figure in (PACE, BATCH, LIMIT)}
SHOWN = (
    "throughput",
    "pace",
    "tokens",
    "p50",
    "p99",
    "ttft p50",
    "ttft p99",
    "tpot p50",
    "goodput",
    "together",
    "roofline",
)


def figure_of(name: str) -> Figure:
    """A figure of the report's table, or one of OWN."""
    return OWN.get(name) or FIGURES[name]


def grouped(runs: Sequence[Run]) -> Groups:
    """The rounds of each way in each case; a batch of a peer stands beside the callers whose texts it got."""
    found: dict[tuple[Key, str], list[Run]] = defaultdict(list)
    for run in runs:
        found[key_of(run.load), run.subject.label].append(run)
    return {
        key: Group(same[0].subject, same[0].load, tuple(sorted(same, key=lambda run: run.round)))
        for key, same in found.items()
    }


def verdicts(scenario: Scenario, runs: Sequence[Run]) -> tuple[goals.Goal, ...]:
    """The goals with what was measured; None where a way is missing."""
    found = grouped(runs)
    return tuple(_verdict(goal, scenario, found) for goal in scenario.goals)


def _verdict(goal: Goal, scenario: Scenario, found: Groups) -> goals.Goal:
    measured = _value(goal, found.get((goal.case, scenario.label)), found.get((goal.case, goal.against)))
    return goals.Goal(_words(goal, scenario), measured.median if measured else None, goal.least, goal.most)


def _value(goal: Goal, ours: Group | None, theirs: Group | None) -> Spread | None:
    figure = figure_of(goal.figure).of
    if ours is None or (goal.relation != "value" and theirs is None):
        return None
    if theirs is None or goal.relation == "value":
        return ours.spread(figure)
    if goal.relation == "ratio":
        return ratios(ours, theirs, figure)
    base = {run.round: figure(run) for run in theirs.runs}
    pairs = [(figure(run), base.get(run.round)) for run in ours.runs]
    return spread_of([mine - other for mine, other in pairs if mine is not None and other is not None])


def _words(goal: Goal, scenario: Scenario) -> str:
    case = next((case.words for case in scenario.cases if case.key == goal.case), goal.case[0])
    figure = figure_of(goal.figure)
    title = "requests/s" if figure is PACE else heading(figure.title, figure.unit)
    if goal.relation == "ratio":
        return f"{case}: {title}, in times of {goal.against}"
    return f"{case}: {title}" + (f" above {goal.against}" if goal.relation == "difference" else "")


def scenario_table(scenario: Scenario, runs: Sequence[Run]) -> Table:
    """Every way in every case, and in how many times its pace hfx answers."""
    found = grouped(runs)
    figures = _figures(runs)
    rows = [
        _row(case, label, group, found.get((case.key, scenario.label)), figures)
        for case in scenario.cases
        for (key, label), group in found.items()
        if key == case.key
    ]
    columns = ("load", "way", *(heading(figure.title, figure.unit) for figure in figures), "hfx is")
    most = max((len(group.runs) for group in found.values()), default=0)
    notes = (f"Medians of {most} rounds (least–most), ratios round by round.",) if most > 1 else ()
    if all(row[-1] == NOTHING for row in rows):  # nobody was beside it
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(scenario.name, columns, tuple(rows), words=2, notes=notes)


def _figures(runs: Sequence[Run]) -> list[Figure]:
    """Those of SHOWN that were measured; the pace only where it is another than the throughput."""
    at_times = any(run.load.kind == "open" for run in runs)
    wanted = [figure_of(name) for name in SHOWN if name != PACE.name or at_times]
    return [each for each in wanted if any(each.of(run) is not None for run in runs)]


def _row(case: Case, label: str, group: Group, ours: Group | None, figures: Sequence[Figure]) -> tuple[str, ...]:
    times = ratios(ours, group, pace) if ours and _comparable(label, ours) else None
    cells = (spread(group.spread(figure.of), figure.unit) for figure in figures)
    return (case.words, label, *cells, ratio_spread(times))


def _comparable(label: str, ours: Group) -> bool:
    return label != ours.subject.label and not label.endswith(IN_PROCESS)


def result_table(result: Result) -> Table:
    """The table of a scenario's result, its loads as they were measured."""
    from bench.scenarios.table import SCENARIOS

    scenario = SCENARIOS[str(result.details["scenario"])]
    return scenario_table(quick(scenario) if result.details.get("quick") else scenario, result.runs)
