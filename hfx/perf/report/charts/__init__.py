"""The charts of a result: one file a chart, each with `chart(result) -> Chart | None`; without data there is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from hfx.perf.report.charts import (
    cost,
    each_token,
    first_token,
    front,
    growth,
    latency_cdf,
    latency_throughput,
    ratios,
    steps,
    throughput,
)
from hfx.perf.report.charts.chart import Chart
from hfx.perf.results.schema import Result, Run

CHARTS: tuple[Callable[[Result], Chart | None], ...] = (front.chart, ratios.chart, throughput.chart, cost.chart)
# A picture for each case (short texts, long texts, …): their figures have nothing to do with each other.
BY_CASE: tuple[Callable[[Result], Chart | None], ...] = (
    latency_throughput.chart,
    growth.chart,
    latency_cdf.chart,
    first_token.chart,
    each_token.chart,
    steps.chart,
)


def charts(result: Result) -> list[Chart]:
    """All charts for which RESULT has data, in the order in which they are read."""
    whole = [make(result) for make in CHARTS]
    parts = [_of_case(make(part), case) for make in BY_CASE for case, part in by_case(result)]
    return [made for made in (*whole, *parts) if made is not None]


def by_case(result: Result) -> list[tuple[str, Result]]:
    """RESULT's runs case by case, named so above the picture and not in it; as it is with one case, or of a tuning."""
    cases = list(dict.fromkeys(run.load.case for run in result.runs))
    if len(cases) < 2 or result.kind == "tune":
        return [("", result)]
    return [
        (case, replace(result, runs=tuple(_bare(run) for run in result.runs if run.load.case == case)))
        for case in cases
    ]


def _bare(run: Run) -> Run:
    return replace(run, load=replace(run.load, case=""))


def _of_case(made: Chart | None, case: str) -> Chart | None:
    if made is None or not case:
        return made
    return replace(made, name=f"{made.name}-{_plain(case)}", title=f"{made.title}: {case}")


def _plain(words: str) -> str:
    return re.sub("[^a-z0-9]+", "-", words.lower()).strip("-")
