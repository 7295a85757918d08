"""The distribution of latency: the share of requests that took no longer than a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import Chart, colour, dash, data, drawn, told
from hfx.perf.report.charts.series import names, representative, some, under
from hfx.perf.report.numbers import count, number
from hfx.perf.report.table import Table
from hfx.perf.results.distribution import cumulative, merged
from hfx.perf.results.schema import Distribution, Result

MOST = 6  # loads of one way
LEAST = 10  # requests: fewer have no distribution worth a line


def chart(result: Result) -> Chart | None:
    """A line for each load of one way, or each way under its heaviest load; None without latencies."""
    found = [
        (group, all_rounds)
        for group in some(representative(result), MOST)
        if (all_rounds := merged([run.latency for run in group.runs if run.latency])) and all_rounds.count >= LEAST
    ]
    if not found:
        return None
    labels = names([group for group, _ in found])
    all_times = [each for _, each in found]
    sentences = [
        f"{label}: half of the requests within {number(each.p50)} ms, 99 % within {number(each.p99)} ms."
        for label, each in zip(labels, all_times, strict=True)
    ]
    title = f"Distribution of latency{under([group for group, _ in found])}"
    return drawn("latency-cdf", title, told(sentences), _layers(labels, all_times), _table(labels, all_times))


def _layers(names: Sequence[str], found: Sequence[Distribution]) -> list[alt.Chart]:
    rows: list[dict[str, Any]] = [
        {"what": name, "ms": max(milliseconds, 1e-3), "share": share}
        for name, each in zip(names, found, strict=True)
        for milliseconds, share in cumulative(each)
    ]
    x = alt.X("ms:Q", title="ms", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(tickCount=8, format="~r"))
    y = alt.Y("share:Q", title="requests that took no longer", axis=alt.Axis(format="%", grid=True, tickCount=5))
    line = data(rows).mark_line(interpolate="linear").encode(
        x, y, colour("what", names, legend=True), dash("what", names, legend=True), order="share:Q",
    )  # fmt: skip
    return [line]


def _table(names: Sequence[str], found: Sequence[Distribution]) -> Table:
    columns = ("what", "requests", "min ms", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "max ms")
    rows = tuple(
        (name, count(each.count), *map(number, (each.min, each.p50, each.p90, each.p95, each.p99, each.max)))
        for name, each in zip(names, found, strict=True)
    )
    return Table("", columns, rows)
