"""Latency against throughput: how much longer a request takes as more is answered, with the load at each point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import UPPER_DASHED, Chart, colour, dash, data, drawn, label, number_axis, shape, told
from hfx.perf.report.charts.series import Series, amount, axis, swept
from hfx.perf.report.figures import FIGURES, Figure, main
from hfx.perf.report.numbers import number
from hfx.perf.report.table import Table
from hfx.perf.results.schema import Result

PERCENTILES = ("p50", "p99")
NAMED = "p50"  # the line whose points carry their loads: below and right of it nothing else is drawn
ROOM = 1.1  # for the last name


def chart(result: Result) -> Chart | None:
    """A line for each way (both percentiles, the median solid); None with fewer than two loads."""
    found = swept(result)
    figure = main(result.runs)
    rows = [row for each in found for row in _rows(each, figure)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["way"] for row in rows))  # without those that answered nothing
    title = f"Latency against {figure.title}"
    return drawn(
        "latency-throughput",
        title,
        f"{_words(rows, names, figure)} The numbers at the points are {axis(found)}.",
        _layers(rows, names, figure),
        _table(rows, figure),
    )


def _rows(each: Series, figure: Figure) -> list[dict[str, Any]]:
    rows = []
    for order, group in enumerate(each.groups):
        answered = group.spread(figure.of)
        for part in PERCENTILES:
            waited = group.spread(FIGURES[part].of)
            if answered and waited:
                rows.append(
                    {
                        "way": each.name, "part": part, "order": order, "load": group.load.label,
                        "amount": f"{amount(group.load):g}",
                        "answered": answered.median, "ms": waited.median,
                    }
                )  # fmt: skip
    return rows


def _layers(rows: Sequence[dict[str, Any]], names: Sequence[str], figure: Figure) -> list[alt.Chart]:
    one = len(names) == 1
    x = alt.X("answered:Q", title=f"{figure.title} answered", **number_axis([row["answered"] for row in rows], ROOM))
    y = alt.Y("ms:Q", title="ms a request", **number_axis([row["ms"] for row in rows]))
    field, domain = ("part", PERCENTILES) if one else ("way", tuple(names))
    tooltip = ["way:N", "load:N", "part:N", "answered:Q", "ms:Q"]
    part = UPPER_DASHED if one else dash("part", PERCENTILES, legend=True)
    lines = data(rows).mark_line().encode(
        x, y, colour(field, domain, legend=True), part, order="order:Q",
        detail=["way:N", "part:N"],
    )  # fmt: skip
    points = data(rows).mark_point().encode(
        x, y, colour(field, domain, legend=True), shape(field, domain, legend=True), tooltip=tooltip
    )  # fmt: skip
    marked = [row for row in rows if row["part"] == NAMED]
    loads = data(marked).encode(x, y, text="amount:N")
    return [lines, points, *label(loads, align="left", dx=7, dy=12)]


def _words(rows: Sequence[dict[str, Any]], names: Sequence[str], figure: Figure) -> str:
    sentences = []
    for name in names:
        mine = [row for row in rows if row["way"] == name and row["part"] == "p99"]
        first, last = mine[0], mine[-1]
        sentences.append(
            f"{name}: {first['load']} got {number(first['answered'])} {figure.title} at a p99 of {number(first['ms'])}"
            f" ms, {last['load']} {number(last['answered'])} at {number(last['ms'])} ms."
        )
    return told(sentences)


def _table(rows: Sequence[dict[str, Any]], figure: Figure) -> Table:
    points: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        points.setdefault((row["way"], row["load"]), {"answered": row["answered"]})[row["part"]] = row["ms"]
    cells = tuple(
        (*key, number(point["answered"]), *(number(point.get(part)) for part in PERCENTILES))
        for key, point in points.items()
    )
    return Table("", ("way", "load", figure.title, *(f"{part} ms" for part in PERCENTILES)), cells, 2)
