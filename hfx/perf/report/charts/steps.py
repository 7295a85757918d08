"""Where the time goes: queue, input, infer and output of each model that a request passes, one bar a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from hfx.perf.report.charts.chart import BAR, LINES, NAME, ROW, Chart, colour, data, drawn, label
from hfx.perf.report.charts.series import names, representative, some, under
from hfx.perf.report.numbers import number
from hfx.perf.report.table import Table
from hfx.perf.report.tables import steps, way
from hfx.perf.results.schema import Result
from hfx.perf.results.summary import Group

PHASES = ("queue", "input", "infer", "output")
MOST = 4  # loads or ways in the picture; the whole table stands below


def chart(result: Result) -> Chart | None:
    """Bars of the loads, or of the ways of a comparison; None where the server's statistics were not read."""
    found = some([group for group in representative(result) if steps(group.runs)], MOST)
    rows = [row for group, label in zip(found, names(found), strict=True) for row in _rows(group, label)]
    if not rows:
        return None
    bars = [*dict.fromkeys(row["bar"] for row in rows)]
    y = alt.Y("bar:N", sort=bars, axis=None)
    stack = data(rows).mark_bar(height=14, yOffset=BAR).encode(
        alt.X("ms:Q", title="ms of a request, on average", stack="zero", axis=LINES), y,
        colour("phase", PHASES, legend=True), order="order:Q", tooltip=["bar:N", "phase:N", "ms:Q"],
    )  # fmt: skip
    heads = data([{"bar": bar} for bar in bars])
    texts = label(heads.encode(x=alt.value(0), y=y, text="bar:N"), align="left", yOffset=NAME)
    title = f"Where the time goes{under(found)}"
    return drawn("steps", title, _words(rows), [stack, *texts], _table(found), height=ROW * len(bars))


def _rows(group: Group, label: str) -> list[dict[str, Any]]:
    return [
        {"bar": f"{label}: {step.model}", "phase": phase, "order": order, "ms": getattr(step, phase)}
        for step in steps(group.runs)
        for order, phase in enumerate(PHASES)
    ]


def _words(rows: Sequence[dict[str, Any]]) -> str:
    """The longest phase of the last load, which is the heaviest."""
    last = rows[-1]["bar"].rpartition(": ")[0]
    mine = [row for row in rows if row["bar"].startswith(f"{last}: ")]
    total = sum(row["ms"] for row in mine)
    longest = max(mine, key=lambda row: float(row["ms"]))
    return (
        f"{last}: a request spent {number(total)} ms in the server's models, "
        f"most of it ({number(longest['ms'])} ms) in {longest['phase']} of {longest['bar'].rpartition(': ')[2]}."
    )


def _table(found: Sequence[Group]) -> Table:
    rows = tuple(
        (
            way(group),
            group.load.label,
            step.model,
            *(number(getattr(step, phase)) for phase in PHASES),
            number(step.batch),
        )
        for group in found
        for step in steps(group.runs)
    )
    return Table("", ("way", "load", "model", *(f"{phase} ms" for phase in PHASES), "batch"), rows, 3)
