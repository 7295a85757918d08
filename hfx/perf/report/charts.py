"""The charts of a result, as Vega-Lite specifications with a common theme. A chart without data is left out.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which people with any colour vision can tell apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from hfx.perf.report import tables
from hfx.perf.report.figures import FIGURES, Figure, main, number, ratio
from hfx.perf.report.tables import by_load, name_of, ratio_of
from hfx.perf.results import PHASES, Load, Result, cumulative, merged
from hfx.perf.rounds import Group, groups, steps

LIGHT = {
    "paper": "#ffffff", "ink": "#1b1f24", "soft": "#57606a", "faint": "#d8dee4", "c1": "#0072b2", "c2": "#d55e00",
    "c3": "#009e73", "c4": "#cc79a7", "c5": "#b97f00", "c6": "#3f8fbf", "c7": "#000000",
}  # fmt: skip
DARK = {
    "paper": "#14171b", "ink": "#e8eaed", "soft": "#a9b1ba", "faint": "#363c44", "c1": "#56b4e9", "c2": "#e69f00",
    "c3": "#009e73", "c4": "#cc79a7", "c5": "#f0e442", "c6": "#d55e00", "c7": "#ffffff",
}  # fmt: skip
PAGE = {name: f"var(--{name})" for name in LIGHT}  # colours for a page that defines these CSS variables
HEIGHT, ROW, SVG_WIDTH = 300, 40, 720  # pixels; ROW is the height of a bar with its name above it
MAX_BARS, MAX_LINES, MAX_STEPS = 24, 6, 4
MIN_REQUESTS = 10  # the fewest requests for which a distribution is drawn
KINDS = ("chosen", "before", "unbeaten", "beaten", "misses")
AXES = {"closed": "callers", "open": "requests/s offered"}
CLIP_ID = re.compile(r'(?<=[" #])(clip|gradient_)(\d+)')


@dataclass(frozen=True)
class Chart:
    """A chart. `spec` is in Vega-Lite, and as wide as its container.

    `name` is for the chart's file, and `description` for screen readers.
    """

    name: str
    title: str
    description: str
    spec: Mapping[str, Any]


def charts(result: Result) -> list[Chart]:
    """Return the charts for which `result` has data, in reading order.

    With several cases, there is one chart per case.
    """
    cases = list(dict.fromkeys(run.load.case for run in result.runs if run.load.case != tables.FINAL))
    if len(cases) < 2:
        by_case = [make(result) for make in BY_CASE]
    else:
        by_case = [_of_case(result, case, make) for make in BY_CASE for case in cases]
    return [chart for chart in (front(result), throughput(result), *by_case) if chart]


def svg(chart: Chart, colours: Mapping[str, str]) -> str:
    """Render `chart` as SVG text, without a browser. Equal charts give equal texts."""
    import vl_convert

    fitted = {"width": SVG_WIDTH, "autosize": {"type": "fit-x", "contains": "padding"}, "title": chart.title}
    text = vl_convert.vegalite_to_svg({**chart.spec, **fitted}, vl_version=vega_lite_version(), config=config(colours))
    names: dict[str, str] = {}  # ids are renumbered, because Vega continues the numbers of the previous picture
    return CLIP_ID.sub(lambda match: names.setdefault(match[0], f"{match[1]}{len(names)}"), text) + "\n"


def vega_lite_version() -> str:
    """Return the version of Vega-Lite that altair writes, as vl-convert spells it: "6.1"."""
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def config(colours: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of all charts in `colours`: LIGHT, DARK or PAGE."""
    text = {"labelColor": colours["ink"], "titleColor": colours["soft"], "labelFontSize": 12, "titleFontSize": 12}
    lines = {"gridColor": colours["faint"], "domainColor": colours["soft"], "tickColor": colours["soft"], "grid": False}
    stacked = {"direction": "vertical", "anchor": "start"}  # for legends, so that they fit on a phone
    limits = {"labelLimit": 200, "titleLimit": 270, "labelOverlap": True}
    return {
        "background": "transparent",
        "font": "sans-serif",
        "padding": 4,
        "view": {"stroke": None},
        "range": {"category": [colours[f"c{n}"] for n in range(1, 8)]},
        "title": {"color": colours["ink"], "anchor": "start", "frame": "group", "fontSize": 14, "offset": 8},
        "axis": {**text, **lines, **limits, "titleFontWeight": "normal"},
        "legend": {**text, "title": None, "orient": "top", "labelLimit": 260, "layout": {"top": stacked}},
        "text": {"color": colours["ink"], "fontSize": 12, "font": "sans-serif"},
        "rule": {"color": colours["soft"], "strokeWidth": 2},
        "point": {"size": 70, "filled": True, "opacity": 1},
    }


# The charts


def front(result: Result) -> Chart | None:
    """Chart a tuning's trials: throughput against p99, with the Pareto front."""
    trials = tables.trials(result)
    if len(trials) < 2:
        return None
    rate, p99 = tables.trial_figures(result)
    rows: list[dict[str, Any]] = [
        {"trial": t.label, "settings": t.settings, "kind": t.verdict, "rate": t.rate, "p99": t.p99} for t in trials
    ]
    best = [row for row, trial in zip(rows, trials, strict=True) if trial.best]
    scale = alt.Scale(zero=False, nice=True, padding=20)
    x = alt.X("rate:Q", title=f"{rate.title} (more is better)", scale=scale, axis=LINES)
    y = alt.Y("p99:Q", title=f"{p99.title} ms (less is better)", scale=scale, axis=LINES)
    line = data(best).mark_line(interpolate="step-before", strokeDash=[6, 3], color="gray")
    tooltip = ["trial:N", "settings:N", "kind:N", "rate:Q", "p99:Q"]
    points = data(rows).mark_point(size=110).encode(x, y, colour(rows, "kind", KINDS), tooltip=tooltip)
    names = ", ".join(row["trial"] for row in best) or "none"
    description = f"{len(rows)} trials. No other has both more throughput and a lower p99 than: {names}."
    return _chart("front", "Trials", description, [*([line.encode(x, y, order="rate:Q")] if best else []), points])


def throughput(result: Result) -> Chart | None:
    """Chart the variants of a comparison as bars under every load, with range and ratio to the base."""
    found = by_load(_compared(result))[:MAX_BARS]
    figure = main(result.runs)
    rows = [row for group in found if (row := _bar(group, found, result.base, figure))]
    if len({row["variant"] for row in rows}) < 2:
        return None
    scale = alt.Scale(zero=True, nice=True)
    x = alt.X("value:Q", title=f"{figure.title} (more is better)", scale=scale, axis=LINES)
    variant = alt.Color("variant:N", scale=alt.Scale(domain=distinct(rows, "variant")), legend=None)
    drawn = bars(rows, x, variant, tooltip=["bar:N", "value:Q", "least:Q", "most:Q"])
    uneven = data([row for row in rows if row["least"] < row["most"]] or rows[:1])
    ranges = uneven.mark_rule(yOffset=6).encode(alt.X("least:Q"), bar_axis(rows), x2="most:Q")
    description = f"{figure.title}. " + sentences(f"{row['bar']} {number(row['value'])}" for row in rows)
    title = f"Throughput, and its ratio to {result.base}" if result.base else "Throughput, side by side"
    return _chart("throughput", title, description, [drawn, ranges, bar_names(rows)], ROW * len(rows))


def latency_throughput(result: Result) -> Chart | None:
    """Chart latency against throughput: p50 solid, p99 dashed, points with their loads.

    Needs two loads of a variant.
    """
    figure = main(result.runs)
    rows = [row for row in _sweep(result, "") if row["answered"] is not None]
    if not rows:
        return None
    x = alt.X("answered:Q", title=f"{figure.title} answered", **axis([row["answered"] for row in rows], 1.1))
    y = alt.Y("ms:Q", title="ms per request", **axis([row["ms"] for row in rows]))
    loads = data([row for row in rows if row["part"] == "p50"])
    labels = loads.mark_text(align="left", dx=7, dy=12).encode(x, y, text="amount:N")
    description = f"The numbers at the points are {rows[0]['axis']}. " + ends(rows, "p99")
    layers = [*curves(rows, x, y), labels]
    return _chart("latency-throughput", f"Latency against {figure.title}", description, layers)


def first_token(result: Result) -> Chart | None:
    """Chart the time to the first token over the load: p50 solid, p99 dashed. Needs streams under two loads."""
    rows = _sweep(result, "ttft ")
    if not rows:
        return None
    amounts = sorted({float(row["amount"]) for row in rows})
    scale = alt.Scale(type="log", base=2, nice=False, padding=14)
    x = alt.X("amount:Q", title=rows[0]["axis"], scale=scale, axis=alt.Axis(values=amounts, format="~r", grid=False))
    y = alt.Y("ms:Q", title="ms", **axis([row["ms"] for row in rows]))
    return _chart("first-token", "Time to the first token", ends(rows, "p50"), curves(rows, x, y))


def latency_cdf(result: Result) -> Chart | None:
    """Chart the cumulative distribution of latency, with a line for each load of a variant, or for each variant."""
    rows: list[dict[str, Any]] = []
    lines = []
    for name, group in _representative(result, MAX_LINES):
        times = merged([run.latency for run in group.runs if run.latency])
        if times and times.count >= MIN_REQUESTS:
            rows += [{"line": name, "ms": max(ms, 1e-3), "share": share} for ms, share in cumulative(times)]
            lines.append(f"{name}: half within {number(times.p50)} ms, 99 % within {number(times.p99)} ms")
    if not rows:
        return None
    x = alt.X("ms:Q", title="ms", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(tickCount=8, format="~r"))
    y = alt.Y("share:Q", title="share of requests", axis=alt.Axis(format="%", grid=True, tickCount=5))
    line = data(rows).mark_line().encode(x, y, colour(rows, "line"), order="share:Q")
    return _chart("latency-cdf", "Distribution of latency", sentences(lines), [line])


def time_in_steps(result: Result) -> Chart | None:
    """Chart the time in queue, input, infer and output, with a bar for each model that a request passes through."""
    rows = [
        dict.fromkeys(("bar", "text"), f"{name}: {step.model}") | {"phase": phase, "ms": getattr(step, phase)}
        for name, group in _representative(result, MAX_STEPS)
        for step in steps(group.runs)
        for phase in PHASES
    ]
    if not rows:
        return None
    x = alt.X("ms:Q", title="ms per request, on average", stack="zero", axis=LINES)
    drawn = bars(rows, x, colour(rows, "phase"), tooltip=["bar:N", "phase:N", "ms:Q"])
    longest = max(rows, key=lambda row: float(row["ms"]))
    description = f"The longest part: {number(longest['ms'])} ms in {longest['phase']} of {longest['bar']}."
    height = ROW * len(rows) // len(PHASES)
    return _chart("steps", "Where the time goes", description, [drawn, bar_names(rows)], height)


BY_CASE: tuple[Callable[[Result], Chart | None], ...] = (latency_throughput, latency_cdf, first_token, time_in_steps)


# Selecting the data to draw


def _compared(result: Result) -> list[Group]:
    """Return the groups of a comparison of at least two variants, without the trials of a tuning; else no groups."""
    found = groups(tables.proof(result).runs)
    return found if len({name_of(group) for group in found}) > 1 else []


def _representative(result: Result, most: int) -> list[tuple[str, Group]]:
    """Return up to `most` named groups for a chart: variants under the last common load, or a selection of loads."""
    if several := _compared(result):
        loads = [group.load.label for group in several]
        common = [load for load in dict.fromkeys(loads) if loads.count(load) == max(map(loads.count, loads))]
        return [(name_of(group), group) for group in several if group.load.label == common[-1]][:most]
    found = [] if result.kind == "tune" else groups(result.runs)
    last = len(found) - 1
    picked = found if len(found) <= most else [found[round(index * last / (most - 1))] for index in range(most)]
    return [(group.load.label, group) for group in picked]


def _sweep(result: Result, kind: str) -> list[dict[str, Any]]:
    """Return rows with p50 and p99 of each variant that has at least two loads.

    `kind` is "" for latency, or "ttft ".
    """
    answered = main(result.runs).of
    series: dict[str, list[Group]] = {}
    for group in [] if result.kind == "tune" else groups(result.runs):
        if _amount(group.load) and group.spread(FIGURES[f"{kind}p50"].of):
            name = name_of(group) if group.load.kind != "open" else f"{name_of(group)}, {group.load.arrivals}"
            series.setdefault(name, []).append(group)
    swept = {name: found for name, found in series.items() if len(found) > 1}
    kinds = {group.load.kind for found in swept.values() for group in found}
    label = AXES[kinds.pop()] if len(kinds) == 1 else "callers or requests/s offered"
    return [
        {
            "variant": name, "order": order, "load": group.load.label, "axis": label, "part": part, "ms": ms,
            "amount": f"{_amount(group.load):g}", "answered": group.median(answered),
        }
        for name, found in swept.items()
        for order, group in enumerate(sorted(found, key=lambda group: _amount(group.load)))
        for part in PERCENTILES
        if (ms := group.median(FIGURES[f"{kind}{part}"].of)) is not None
    ]  # fmt: skip


def _amount(load: Load) -> float:
    """Return the load as a number for an axis: callers, or requests per second; 0 if it has neither."""
    return float((load.rate if load.kind == "open" else load.concurrency) or 0)


def _bar(group: Group, found: Sequence[Group], base: str, figure: Figure) -> dict[str, Any] | None:
    value, to_base = group.spread(figure.of), ratio_of(group, found, base, figure)
    if value is None:
        return None
    bar = f"{group.load.label}: {name_of(group)}"
    beside = f" ({ratio(to_base.median)})" if to_base else ""
    return {
        "bar": bar, "variant": name_of(group), "text": f"{number(value.median)}{beside} · {bar}",
        "value": value.median, "least": value.least, "most": value.most,
    }  # fmt: skip


def _of_case(result: Result, case: str, make: Callable[[Result], Chart | None]) -> Chart | None:
    """Make the chart of one case. The name of the case is in the title only."""
    runs = tuple(replace(run, load=replace(run.load, case="")) for run in result.runs if run.load.case == case)
    chart = make(replace(result, runs=runs))
    suffix = re.sub("[^a-z0-9]+", "-", case.lower()).strip("-")
    return chart and replace(chart, name=f"{chart.name}-{suffix}", title=f"{chart.title}: {case}")


def _chart(name: str, title: str, description: str, layers: Sequence[alt.Chart], height: int = HEIGHT) -> Chart:
    spec = alt.layer(*layers).properties(width="container", height=height, description=description)
    return Chart(name, title, description, {k: v for k, v in spec.to_dict(validate=False).items() if k != "config"})


# Building blocks: bars, curves, axes, legends, and descriptions as text

PHONE, LETTER, SYMBOL = 290, 7, 30  # widths in pixels: a plot on a phone, a letter of a legend, its symbol and gap
WIDE = 10  # an axis is logarithmic above this ratio of its largest to its smallest value
PERCENTILES = ("p50", "p99")
LINES = alt.Axis(grid=True, tickCount=6)


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart with the data `rows`, but without a mark and an encoding."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def bar_axis(rows: Sequence[Mapping[str, Any]]) -> alt.Y:
    """Return an axis with a line for each bar, in order of appearance."""
    return alt.Y("bar:N", sort=distinct(rows, "bar"), axis=None)


def bars(rows: Sequence[Mapping[str, Any]], x: alt.X, colour: alt.Color, tooltip: list[str]) -> Any:
    """Return horizontal bars, with room for their names."""
    return data(rows).mark_bar(height=14, yOffset=6).encode(x, bar_axis(rows), colour, tooltip=tooltip)


def bar_names(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the name of each bar, placed above the bar, where the whole width is free, even on a phone."""
    names = data(list({row["bar"]: row for row in rows}.values()))
    mark = names.mark_text(align="left", yOffset=-9, limit=alt.expr("width"))
    return mark.encode(x=alt.value(0), y=bar_axis(rows), text="text:N")


def curves(rows: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Return lines with points: a colour for each variant, p50 solid and p99 dashed."""
    variant = colour(rows, "variant")
    dashes = alt.Scale(domain=list(PERCENTILES), range=[[1, 0], [6, 3]])
    part = alt.StrokeDash("part:N", scale=dashes, legend=legend(PERCENTILES))
    lines = data(rows).mark_line().encode(x, y, variant, part, order="order:Q", detail=["variant:N", "part:N"])
    tooltip = ["variant:N", "load:N", "part:N", "ms:Q"]
    return [lines, data(rows).mark_point().encode(x, y, variant, tooltip=tooltip)]


def distinct(rows: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    """Return the distinct values of `field`, in order of appearance."""
    return list(dict.fromkeys(row[field] for row in rows))


def colour(rows: Sequence[Mapping[str, Any]], field: str, order: Sequence[str] = ()) -> alt.Color:
    """Assign a colour to each value of `field`, in order of appearance, or in the given `order`."""
    domain = sorted(distinct(rows, field), key=order.index) if order else distinct(rows, field)
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain), legend=legend(domain))


def legend(domain: Sequence[str]) -> alt.Legend:
    """Return a legend with as many columns as fit on a phone. Vega does not lay out legends for the actual width."""
    return alt.Legend(columns=max(1, PHONE // (LETTER * max(map(len, domain), default=1) + SYMBOL)))


def axis(values: Sequence[float], room: float = 1.05) -> dict[str, Any]:
    """Return scale and axis from zero to `room` times the largest value.

    They are logarithmic if the ratio of the largest to the smallest value exceeds WIDE.
    """
    least, most = min(values), max(values)
    if not 0 < WIDE * least < most:
        return {"scale": alt.Scale(domain=[0, most * room or 1], nice=True), "axis": LINES}
    low, high = least / 1.2, most * max(room, 1.2) ** 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return {"scale": scale, "axis": alt.Axis(grid=True, values=ticks, format=",~r")}


def ends(rows: Sequence[Mapping[str, Any]], part: str) -> str:
    """Describe the first and last point of each variant as text."""
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
    """Join the first `most` of `parts` as sentences, and add how many more there are."""
    found = list(parts)
    more = [f"{len(found) - most} more: see the tables."] if len(found) > most else []
    return " ".join([*(f"{part}." for part in found[:most]), *more])
