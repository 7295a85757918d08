"""What the charts are drawn with: bars, curves, axes and legends of rows of values, and their descriptions in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from hfx.perf.report.numbers import number

PHONE, LETTER, SYMBOL = 290, 7, 30  # pixels: a plot on a phone, a letter of a legend, its symbol and gap
WIDE = 10  # times the least from which on an axis is logarithmic
PERCENTILES = ("p50", "p99")
LINES = alt.Axis(grid=True, tickCount=6)


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of `rows`, to which a mark and its encoding are added."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def bar_axis(rows: Sequence[Mapping[str, Any]]) -> alt.Y:
    """A line for each bar, in order of appearance."""
    return alt.Y("bar:N", sort=distinct(rows, "bar"), axis=None)


def bars(rows: Sequence[Mapping[str, Any]], x: alt.X, colour: alt.Color, tooltip: list[str]) -> Any:
    """Horizontal bars, with room for their names."""
    return data(rows).mark_bar(height=14, yOffset=6).encode(x, bar_axis(rows), colour, tooltip=tooltip)


def bar_names(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The name of each bar above it: so that it has the whole width, on a phone too."""
    names = data(list({row["bar"]: row for row in rows}.values()))
    mark = names.mark_text(align="left", yOffset=-9, limit=alt.expr("width"))
    return mark.encode(x=alt.value(0), y=bar_axis(rows), text="text:N")


def curves(rows: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Lines with points: a colour for each variant, p50 solid and p99 dashed."""
    variant = colour(rows, "variant")
    dashes = alt.Scale(domain=list(PERCENTILES), range=[[1, 0], [6, 3]])
    part = alt.StrokeDash("part:N", scale=dashes, legend=legend(PERCENTILES))
    lines = data(rows).mark_line().encode(x, y, variant, part, order="order:Q", detail=["variant:N", "part:N"])
    tooltip = ["variant:N", "load:N", "part:N", "ms:Q"]
    return [lines, data(rows).mark_point().encode(x, y, variant, tooltip=tooltip)]


def distinct(rows: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    """The values of `field`, in order of appearance."""
    return list(dict.fromkeys(row[field] for row in rows))


def colour(rows: Sequence[Mapping[str, Any]], field: str, order: Sequence[str] = ()) -> alt.Color:
    """A colour for each value of `field`, in order of appearance, or as in `order`."""
    domain = sorted(distinct(rows, field), key=order.index) if order else distinct(rows, field)
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain), legend=legend(domain))


def legend(domain: Sequence[str]) -> alt.Legend:
    """As many columns as a phone has room for: Vega does not lay legends out again when it has found the width."""
    return alt.Legend(columns=max(1, PHONE // (LETTER * max(map(len, domain), default=1) + SYMBOL)))


def axis(values: Sequence[float], room: float = 1.05) -> dict[str, Any]:
    """From zero to `room` times the most; logarithmic where the most is more than WIDE times the least."""
    least, most = min(values), max(values)
    if not 0 < WIDE * least < most:
        return {"scale": alt.Scale(domain=[0, most * room or 1], nice=True), "axis": LINES}
    low, high = least / 1.2, most * max(room, 1.2) ** 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return {"scale": scale, "axis": alt.Axis(grid=True, values=ticks, format=",~r")}


def ends(rows: Sequence[Mapping[str, Any]], part: str) -> str:
    """The first and the last point of each variant in words."""
    lines = {
        name: [row for row in rows if (row["variant"], row["part"]) == (name, part)]
        for name in distinct(rows, "variant")
    }
    return sentences(
        f"{name}: {part} {number(line[0]['ms'])} ms with {line[0]['load']}, {number(line[-1]['ms'])} ms with "
        f"{line[-1]['load']}"
        for name, line in lines.items()
        if line
    )


def sentences(parts: Iterable[str], most: int = 3) -> str:
    """The first `most` of `parts` as sentences, and how many more there are."""
    found = list(parts)
    more = [f"{len(found) - most} more: see the tables."] if len(found) > most else []
    return " ".join([*(f"{part}." for part in found[:most]), *more])
