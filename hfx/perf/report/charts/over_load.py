"""A time's median and 99th percentile over the load: what the charts of first tokens and of tokens are made by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import UPPER_DASHED, Chart, colour, dash, data, drawn, number_axis, shape, told
from hfx.perf.report.charts.series import Series, amount, axis, swept
from hfx.perf.report.figures import FIGURES
from hfx.perf.report.numbers import number
from hfx.perf.report.table import Table
from hfx.perf.results.schema import Result

PARTS = ("p50", "p99")


def over_load(result: Result, kind: str, name: str, title: str) -> Chart | None:
    """The chart of KIND ("ttft", "tpot") over loads; None with fewer than two loads that have it."""
    found = [each for each in swept(result) if all(group.spread(FIGURES[f"{kind} p50"].of) for group in each.groups)]
    rows = [row for each in found for row in _rows(each, kind)]
    if not rows:
        return None
    names = [each.name for each in found]
    return drawn(name, title, _words(rows, names), _layers(rows, names, axis(found)), _table(rows))


def load_axis(values: Sequence[float], title: str) -> alt.X:
    """The axis of loads, a tick at each; logarithmic, as loads double."""
    ticks = sorted(set(values))
    scale = alt.Scale(type="log", base=2, nice=False, padding=14) if min(ticks) > 0 else alt.Scale(nice=False)
    return alt.X("amount:Q", title=title, scale=scale, axis=alt.Axis(values=ticks, format="~r", grid=False))


def _rows(each: Series, kind: str) -> list[dict[str, Any]]:
    return [
        {
            "way": each.name,
            "part": part,
            "amount": amount(group.load),
            "load": group.load.label,
            "ms": time.median,
        }
        for group in each.groups
        for part in PARTS
        if (time := group.spread(FIGURES[f"{kind} {part}"].of))
    ]


def _layers(rows: Sequence[dict[str, Any]], names: Sequence[str], loads: str) -> list[alt.Chart]:
    one = len(names) == 1
    x = load_axis([row["amount"] for row in rows], loads)
    y = alt.Y("ms:Q", title="ms", **number_axis([row["ms"] for row in rows]))
    field, domain = ("part", PARTS) if one else ("way", tuple(names))
    part = UPPER_DASHED if one else dash("part", PARTS, legend=True)
    lines = data(rows).mark_line().encode(
        x, y, colour(field, domain, legend=True), part, detail=["way:N", "part:N"]
    )  # fmt: skip
    points = data(rows).mark_point().encode(
        x, y, colour(field, domain, legend=True), shape(field, domain, legend=True),
        tooltip=["way:N", "load:N", "part:N", "ms:Q"],
    )  # fmt: skip
    return [lines, points]


def _words(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    sentences = []
    for name in names:
        mine = [row for row in rows if row["way"] == name and row["part"] == "p50"]
        sentences.append(
            f"{name}: median {number(mine[0]['ms'])} ms with {mine[0]['load']}, "
            f"{number(mine[-1]['ms'])} ms with {mine[-1]['load']}."
        )
    return told(sentences)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    points: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        points.setdefault((row["way"], row["load"]), {})[row["part"]] = row["ms"]
    cells = tuple((*key, *(number(point.get(part)) for part in PARTS)) for key, point in points.items())
    return Table("", ("way", "load", *(f"{part} ms" for part in PARTS)), cells, 2)
