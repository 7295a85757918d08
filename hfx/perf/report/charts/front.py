"""A tuning's trials: throughput against latency, and the front of those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import LINES, Chart, colour, data, drawn, shape
from hfx.perf.report.numbers import number
from hfx.perf.report.trials import Trial, figures, trials, trials_table
from hfx.perf.results.schema import Result

KINDS = ("chosen", "before", "best", "beaten", "misses", "stopped early")
SHOWN = 3  # kinds that stand out and are named; the rest is faint


def chart(result: Result) -> Chart | None:
    """A point for each trial; None of what is no tuning or has fewer than two trials."""
    found = trials(result)
    if len(found) < 2:
        return None
    more, less = figures(result)
    rows = [_row(trial) for trial in found]
    best = sorted((row for row in rows if row["best"]), key=lambda row: float(row["more"]))
    wide = alt.Scale(zero=False, nice=True, padding=20)
    x = alt.X("more:Q", title=f"{more.title} (more is better)", scale=wide, axis=LINES)
    y = alt.Y("less:Q", title=f"{less.title} ms (less is better)", scale=wide, axis=LINES)
    line = data(best).mark_line(interpolate="step-before", strokeDash=[6, 3]).encode(
        x, y, order="more:Q", color=alt.value("gray")
    )  # fmt: skip
    parts = [(KINDS[SHOWN:], 0.5), (KINDS[:SHOWN], 1.0)]
    kinds = [kind for kind in KINDS if kind in {row["kind"] for row in rows}]
    dots = [_points(rows, x, y, kinds, shown, opacity) for shown, opacity in parts if {*kinds} & {*shown}]
    marked = [row for row in rows if row["kind"] in KINDS[:SHOWN]]
    texts = data(marked).mark_text(dy=-9, **_inwards(rows)).encode(x, y, text="trial:N")
    return drawn(
        "front", "Trials", _words(found, rows), [*([line] if best else []), *dots, texts], trials_table(result)
    )


def _inwards(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Names left of the points in the right half, and right of the others: so all have room."""
    middle = (min(row["more"] for row in rows) + max(row["more"] for row in rows)) / 2
    right = f"datum.more > {middle}"
    return {"align": alt.expr(f"{right} ? 'right' : 'left'"), "dx": alt.expr(f"{right} ? -9 : 9")}


def _points(
    rows: Sequence[dict[str, Any]], x: alt.X, y: alt.Y, kinds: Sequence[str], shown: Sequence[str], opacity: float
) -> alt.Chart:
    mine = data([row for row in rows if row["kind"] in shown])
    points: alt.Chart = mine.mark_point(size=110, opacity=opacity).encode(
        x, y, colour("kind", kinds, legend=True), shape("kind", kinds, legend=True),
        tooltip=["trial:N", "settings:N", "kind:N", "more:Q", "less:Q"],
    )  # fmt: skip
    return points


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.group.subject.label, "settings": trial.settings, "kind": trial.verdict, "best": trial.best,
        "more": trial.more, "less": trial.less,
    }  # fmt: skip


def _words(found: Sequence[Trial], rows: Sequence[dict[str, Any]]) -> str:
    best = [trial.group.subject.label for trial in found if trial.best]
    words = f"{len(found)} trials. No other has both more throughput and a lower p99 than: {', '.join(best) or 'none'}."
    chosen = next((row for row in rows if row["kind"] == "chosen"), None)
    if chosen is None:
        return words
    return (
        f"{words} Chosen: {chosen['trial']}, {number(chosen['more'])} a second at a p99 of {number(chosen['less'])} ms."
    )
