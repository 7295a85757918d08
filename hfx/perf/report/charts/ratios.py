"""Throughput against the base's: a dot for each way and load, a bar from the least to the most over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import BAR, NAME, ROW, Chart, colour, data, drawn, label, shape, told
from hfx.perf.report.charts.series import compared, ways
from hfx.perf.report.comparisons import by_load, over, ratio_of
from hfx.perf.report.figures import Figure, main
from hfx.perf.report.numbers import ratio, ratio_spread
from hfx.perf.report.table import Table
from hfx.perf.report.tables import way
from hfx.perf.results.schema import Result
from hfx.perf.results.summary import Group, Spread

MOST = 24  # dots


def chart(result: Result) -> Chart | None:
    """Ratios round by round; None without a base that was measured beside another way."""
    found = compared(result)
    figure = main(result.runs)
    known = [
        (group, value) for group in by_load(found) if (value := ratio_of(group, found, result.base, figure)) is not None
    ]
    if not known:
        return None
    rows = [_row(group, value) for group, value in known[:MOST]]
    table = Table(
        "", ("load", "way", over(figure, result.base)),
        tuple((group.load.label, way(group), ratio_spread(value)) for group, value in known), 2,
    )  # fmt: skip
    words = f"{figure.title} over that of {result.base}. " + told(
        [f"{row['bar']}, {ratio(row['value'])}." for row in rows]
    )
    layers = _layers(rows, ways(result), result.base, figure)
    return drawn("ratios", f"Ratio to {result.base}", words, layers, table, height=ROW * len(rows))


def _row(group: Group, value: Spread) -> dict[str, Any]:
    bar = f"{group.load.label}: {way(group)}"
    return {
        "bar": bar, "way": way(group), "text": f"{ratio(value.median)} · {bar}",
        "value": value.median, "least": value.least, "most": value.most,
    }  # fmt: skip


def _layers(rows: Sequence[dict[str, Any]], names: Sequence[str], base: str, figure: Figure) -> list[alt.Chart]:
    y = alt.Y("bar:N", sort=[row["bar"] for row in rows], axis=None)
    wide = max(row["most"] for row in rows) > 10 * min(row["least"] for row in rows)
    scale = alt.Scale(type="log", base=2, nice=True) if wide else alt.Scale(zero=True, nice=True)
    axis = alt.Axis(format="~r", grid=True, tickCount=6)
    x = alt.X("value:Q", title=over(figure, base), scale=scale, axis=axis)
    one = data([{"value": 1}]).mark_rule(strokeDash=[4, 4]).encode(x=x)
    bars = (
        data(rows)
        .mark_rule(yOffset=BAR, strokeWidth=3)
        .encode(x="least:Q", x2="most:Q", y=y, color=colour("way", names, legend=False))
    )
    dots = data(rows).mark_point(yOffset=BAR, size=90).encode(
        x, y, colour("way", names, legend=False), shape("way", names, legend=False),
        tooltip=["bar:N", "value:Q", "least:Q", "most:Q"],
    )  # fmt: skip
    names_above = data(rows).encode(x=alt.value(0), y=y, text="text:N")
    return [one, bars, dots, *label(names_above, align="left", yOffset=NAME)]
