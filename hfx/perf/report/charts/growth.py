"""How throughput grows with callers or rows, the law fitted to it, and its knee."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import LINES, Chart, colour, data, drawn, label, shape
from hfx.perf.report.charts.over_load import load_axis
from hfx.perf.report.charts.series import Series, amount, axis, swept
from hfx.perf.report.figures import Figure, main
from hfx.perf.report.knee import Fit, fit, words
from hfx.perf.report.numbers import NOTHING, number
from hfx.perf.report.table import Table
from hfx.perf.results.schema import Result

STEPS = 60  # points of a fitted curve


def chart(result: Result) -> Chart | None:
    """Points and the fitted curve of each way; None with fewer than four loads of callers or rows who wait."""
    figure = main(result.runs)
    found = [
        (each, law)
        for each in swept(result)
        if not each.open and (law := fit([(row["amount"], row["value"]) for row in _points(each, figure)]))
    ]
    if not found:
        return None
    at_once = axis([each for each, _ in found])
    points = [row for each, _ in found for row in _points(each, figure)]
    sentences = " ".join(_sentence(each, law, named=len(found) > 1) for each, law in found)
    table = Table("", ("way", "load", figure.title, "by the law"), tuple(_cells(found, figure)), 2)
    layers = _layers(points, found, at_once, figure)
    return drawn("growth", f"Growth with {at_once}", sentences, layers, table)


def _points(each: Series, figure: Figure) -> list[dict[str, Any]]:
    return [
        {"way": each.name, "amount": amount(group.load), "load": group.load.label, "value": value.median}
        for group in each.groups
        if (value := group.spread(figure.of)) and value.median > 0
    ]


def _layers(
    points: Sequence[dict[str, Any]], found: Sequence[tuple[Series, Fit]], title: str, figure: Figure
) -> list[alt.Chart]:
    names = [each.name for each, _ in found]
    x = load_axis([row["amount"] for row in points], title)
    y = alt.Y("value:Q", title=figure.title, scale=alt.Scale(zero=True, nice=True), axis=LINES)
    several = len(names) > 1
    good = [(each, law) for each, law in found if not law.poor]
    curves = [
        {"way": each.name, "amount": callers, "value": law.at(callers)}
        for each, law in good
        for callers in _between(points, each.name)
    ]
    knees = [
        {"way": each.name, "amount": law.knee, "text": f"knee at {number(law.knee)}"}
        for each, law in good
        if law.knee <= max(row["amount"] for row in points if row["way"] == each.name)
    ]
    dots = data(points).mark_point().encode(
        x, y, colour("way", names, legend=several), shape("way", names, legend=several),
        tooltip=["way:N", "load:N", "value:Q"],
    )  # fmt: skip
    lines = data(curves).mark_line().encode(x, y, colour("way", names, legend=several), detail="way:N")
    rules = data(knees).mark_rule(strokeDash=[4, 4]).encode(x)
    texts = data(knees).encode(x, y=alt.value(alt.expr("height")), text="text:N")
    named = label(texts, align="right", baseline="bottom", dx=-6, dy=-6)
    return [*([lines] if curves else []), dots, *([rules, *named] if knees else [])]


def _between(points: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Loads from the least to the most measured, evenly on the logarithmic axis."""
    amounts = [row["amount"] for row in points if row["way"] == name]
    least, most = min(amounts), max(amounts)
    return [least * (most / least) ** (index / STEPS) for index in range(STEPS + 1)]


def _sentence(each: Series, law: Fit, *, named: bool) -> str:
    most = max(amount(group.load) or 0.0 for group in each.groups)
    sentence = words(law, most, "callers" if each.axis == "callers" else "rows")
    return f"{each.name}: {sentence}" if named else sentence


def _cells(found: Sequence[tuple[Series, Fit]], figure: Figure) -> list[tuple[str, ...]]:
    return [
        (row["way"], row["load"], number(row["value"]), NOTHING if law.poor else number(law.at(row["amount"])))
        for each, law in found
        for row in _points(each, figure)
    ]
