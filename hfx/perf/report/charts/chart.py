"""A chart as a value: its Vega-Lite specification without colours of its own, its words, and its values as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from hfx.perf.report.table import Table
from hfx.perf.report.theme import DASHES, SHAPES

HEIGHT = 300
LINES = alt.Axis(grid=True, tickCount=6)
PHONE, LETTER, SYMBOL = 290, 7, 30  # pixels: a plot on a phone, a letter of a legend, its symbol and gap
# Where colours tell p99 from p50 already, dashes do so beside them, without a legend of their own.
UPPER_DASHED = alt.StrokeDash(condition={"test": "datum.part == 'p99'", "value": DASHES[1]}, value=DASHES[0])
WIDTH = alt.expr("width")
WIDE = 10  # times the least from which on an axis is logarithmic
ROW = 40  # pixels of a bar with its name above it: nearer to it than to the bar before
NAME, BAR = -9, 6  # how far from the middle of a row


@dataclass(frozen=True)
class Chart:
    """`name` is its file's name; `words` say what it shows to whoever can't see it; `spec` is as wide as its place."""

    name: str
    title: str
    words: str
    spec: Mapping[str, Any]
    table: Table


def drawn(
    name: str, title: str, words: str, layers: Sequence[alt.Chart | alt.LayerChart], table: Table, height: int = HEIGHT
) -> Chart:
    """A Chart of LAYERS, described by WORDS."""
    whole = alt.layer(*layers).properties(width="container", height=height, description=words)
    spec = whole.to_dict(validate=False)
    spec.pop("config", None)  # the theme's business
    return Chart(name, title, words, spec, table)


def told(sentences: Sequence[str], most: int = 3) -> str:
    """The first MOST of SENTENCES, and how many more the values hold."""
    rest = len(sentences) - most
    return " ".join([*sentences[:most], *([f"{rest} more: see the values."] if rest > 0 else [])])


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of ROWS to draw marks of."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def colour(field: str, domain: Sequence[str], *, legend: bool) -> alt.Color:
    """Colours of FIELD's values, always the same ones in the same order."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=[*domain]), legend=_legend(domain if legend else ()))


def shape(field: str, domain: Sequence[str], *, legend: bool) -> alt.Shape:
    """Shapes of FIELD's values, beside their colours."""
    shapes = [SHAPES[index % len(SHAPES)] for index in range(len(domain))]
    return alt.Shape(
        f"{field}:N", scale=alt.Scale(domain=[*domain], range=shapes), legend=_legend(domain) if legend else None
    )


def dash(field: str, domain: Sequence[str], *, legend: bool) -> alt.StrokeDash:
    """Dashes of FIELD's values, beside their colours."""
    dashes = [DASHES[index % len(DASHES)] for index in range(len(domain))]
    return alt.StrokeDash(
        f"{field}:N", scale=alt.Scale(domain=[*domain], range=dashes), legend=_legend(domain) if legend else None
    )


def label(place: alt.Chart, **mark: Any) -> list[alt.Chart]:
    """PLACE's encodings as text that stays readable over lines (in paper first, then in ink) and within the plot."""
    return [place.mark_text(style="halo", limit=WIDTH, **mark), place.mark_text(limit=WIDTH, **mark)]


def number_axis(values: Sequence[float], room: float = 1.05) -> dict[str, Any]:
    """The scale and axis of VALUES: from zero, or logarithmic where the most is more than ten times the least.

    ROOM is the end of the axis as a multiple of the most.
    """
    least, most = min(values), max(values)
    if least > 0 and most > WIDE * least:
        scale = alt.Scale(type="log", domain=[least / 1.2, most * max(room, 1.2) ** 2], nice=False)
        return {"scale": scale, "axis": alt.Axis(grid=True, values=_ticks(least / 1.2, most * 2), format=",~r")}
    return {"scale": alt.Scale(domain=[0, most * room or 1], nice=True), "axis": LINES}


def _ticks(least: float, most: float) -> list[float]:
    """1, 2, 5, 10, … between LEAST and MOST: few enough to be read."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    return [step * 10.0**power for power in powers for step in (1, 2, 5) if least <= step * 10.0**power <= most]


def _legend(domain: Sequence[str]) -> alt.Legend | None:
    """As many columns as a phone has room for; no legend of nothing.

    Not by the width that there is: Vega does not lay legends out again when it has found the width.
    """
    if not domain:
        return None
    each = LETTER * max(len(name) for name in domain) + SYMBOL
    return alt.Legend(columns=max(1, PHONE // each))
