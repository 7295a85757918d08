"""The ways of a comparison side by side, a bar each under every load: what throughput and cost are drawn by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import BAR, LINES, NAME, ROW, Chart, colour, data, drawn, label, told
from hfx.perf.report.charts.series import compared, ways
from hfx.perf.report.comparisons import by_load
from hfx.perf.report.figures import Figure
from hfx.perf.report.numbers import number, spread
from hfx.perf.report.table import Table
from hfx.perf.report.tables import way
from hfx.perf.results.schema import Result
from hfx.perf.results.summary import Group

MOST = 24  # bars


def side_by_side(result: Result, figure: Figure, name: str, title: str, axis: str) -> Chart | None:
    """Bars of FIGURE with least and most; None unless two ways have it."""
    found = [group for group in by_load(compared(result)) if group.spread(figure.of)]
    if len({way(group) for group in found}) < 2:
        return None
    rows = [_row(group, figure) for group in found[:MOST]]
    bars = [row["bar"] for row in rows]
    domain = ways(result)
    y = alt.Y("bar:N", sort=bars, axis=None)
    bar = data(rows).mark_bar(height=14, yOffset=BAR).encode(
        alt.X("value:Q", title=axis, scale=alt.Scale(zero=True, nice=True), axis=LINES), y,
        colour("way", domain, legend=False),
        tooltip=["bar:N", "value:Q", "least:Q", "most:Q"],
    )  # fmt: skip
    uneven = [row for row in rows if row["least"] < row["most"]]
    between = data(uneven)
    ranges = [between.mark_rule(yOffset=BAR, strokeWidth=2).encode(x="least:Q", x2="most:Q", y=y)] if uneven else []
    words = label(data(rows).encode(x=alt.value(0), y=y, text="text:N"), align="left", yOffset=NAME)
    table = Table("", ("load", "way", figure.title), tuple(_cells(group, figure) for group in found), 2)
    return drawn(name, title, _words(rows, axis), [bar, *ranges, *words], table, height=ROW * len(bars))


def _row(group: Group, figure: Figure) -> dict[str, Any]:
    value = group.spread(figure.of)
    assert value is not None
    bar = f"{group.load.label}: {way(group)}"
    shown = f"{number(value.median)} · {bar}"
    return {
        "bar": bar, "way": way(group), "load": group.load.label, "text": shown,
        "value": value.median, "least": value.least, "most": value.most,
    }  # fmt: skip


def _cells(group: Group, figure: Figure) -> tuple[str, ...]:
    return group.load.label, way(group), spread(group.spread(figure.of), figure.unit)


def _words(rows: Sequence[dict[str, Any]], axis: str) -> str:
    sentences: dict[str, list[str]] = {}
    for row in rows:
        sentences.setdefault(row["load"], []).append(f"{row['way']} {number(row['value'])}")
    return f"{axis}. " + told([f"{load}: {', '.join(parts)}." for load, parts in sentences.items()], most=2)
