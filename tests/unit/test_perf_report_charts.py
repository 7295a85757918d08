"""Charts: which are drawn of which results, what they hold, the fitted law, and SVG that is the same every time."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from hfx.perf.report.charts import by_case, charts
from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.knee import fit, words
from hfx.perf.report.pictures import svg, version
from hfx.perf.report.theme import DARK, DASHES, LIGHT, SHAPES
from hfx.perf.results import Result
from tests.unit import perf_samples

SWEEP = ["latency-throughput", "growth", "latency-cdf"]
DRAWN = {
    "concurrencies": [*SWEEP, "steps"],
    "generator": [*SWEEP, "first-token", "each-token", "steps"],
    "devices": [
        "ratios", "throughput", "cost", "latency-throughput", "latency-cdf", "first-token", "each-token", "steps",
    ],
    "one_device": ["latency-throughput", "latency-cdf", "first-token", "each-token", "steps"],
    "peers": ["ratios", "throughput", "latency-cdf-16-words", "latency-cdf-128-words"],
    "tuning": ["front", "ratios", "throughput", "latency-cdf", "steps"],
}  # fmt: skip


def named(result: Result, name: str) -> Chart:
    return next(chart for chart in charts(result) if chart.name == name)


def rows(chart: Chart) -> list[dict[str, Any]]:
    """All data of a chart, whichever layer holds it."""
    parts = [part["data"] for part in (chart.spec, *chart.spec["layer"]) if "data" in part]
    return [row for part in parts for row in chart.spec["datasets"][part["name"]]]


@pytest.mark.parametrize("make", perf_samples.ALL)
def test_only_charts_with_data_are_drawn(make: perf_samples.Make) -> None:
    found = charts(make())
    assert [chart.name for chart in found] == DRAWN[make.__name__]
    for chart in found:
        assert rows(chart)
        assert chart.table.rows
        assert len(chart.words) > 20
        assert all(layer.get("mark") for layer in chart.spec["layer"])
        json.dumps(chart.spec, allow_nan=False)


def test_nothing_is_drawn_of_a_result_without_runs() -> None:
    assert charts(replace(perf_samples.concurrencies(), runs=())) == []


def test_one_load_has_no_line_over_loads() -> None:
    assert [chart.name for chart in charts(perf_samples.concurrencies((4,)))] == ["latency-cdf", "steps"]


def test_failed_runs_are_left_out_rather_than_drawn_at_zero() -> None:
    made = perf_samples.concurrencies()
    dead = replace(made.runs[2], latency=None, throughput=0.0)
    found = charts(replace(made, runs=(*made.runs[:2], dead, *made.runs[3:])))
    assert "4 callers" not in {row.get("load") for chart in found for row in rows(chart) if "ms" in row}


def test_a_side_that_answered_nothing_has_no_picture_and_takes_no_other_away() -> None:
    made = perf_samples.devices()
    dead = {"latency": None, "server": None, "ttft": None, "tpot": None, "throughput": 0.0, "tokens_per_second": 0.0}
    runs = tuple(replace(run, **dead) if run.subject.label == "gpu" else run for run in made.runs)  # type: ignore[arg-type]
    found = charts(replace(made, runs=runs))
    assert {"latency-throughput", "first-token"} <= {chart.name for chart in found}
    assert {row["way"] for row in rows(named(replace(made, runs=runs), "latency-throughput"))} == {"cpu"}
    assert charts(replace(made, runs=tuple(run for run in runs if run.subject.label == "gpu"))) == []


def test_a_tuning_of_one_trial_and_an_unknown_base_are_drawn_as_far_as_they_go() -> None:
    tuned, peers = perf_samples.tuning(), perf_samples.peers()
    assert charts(replace(tuned, runs=tuned.runs[:1])) == []
    assert "ratios" not in [chart.name for chart in charts(replace(peers, base="nobody"))]


def test_the_points_are_the_medians_of_the_table() -> None:
    chart = named(perf_samples.devices(), "throughput")
    drawn = {row["value"] for row in rows(chart) if row["bar"] == "16 callers: gpu"}
    rounds = [run.tokens_per_second for run in perf_samples.devices().runs[5::6]]
    assert drawn == {statistics.median(rounds)}
    assert chart.table.rows[-1][:2] == ("16 callers", "gpu")


def test_the_cdf_rises_from_nothing_to_all() -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows(named(perf_samples.concurrencies(), "latency-cdf")):
        lines.setdefault(row["what"], []).append((row["ms"], row["share"]))
    assert len(lines) == 6
    for points in lines.values():
        assert points == sorted(points)
        assert points[-1][1] == 1.0


def test_the_same_way_has_the_same_colour_everywhere() -> None:
    made = perf_samples.devices()
    domains = {
        json.dumps(layer["encoding"]["color"]["scale"]["domain"])
        for name in ("ratios", "throughput", "cost", "latency-throughput")
        for layer in named(made, name).spec["layer"]
        if "color" in layer["encoding"]
    }
    assert domains == {'["cpu", "gpu"]'}


def test_cases_have_a_picture_each() -> None:
    parts = by_case(perf_samples.peers())
    assert [case for case, _ in parts] == ["16 words", "128 words"]
    assert all(run.load.case == "" for _, part in parts for run in part.runs)


def test_the_laws_parameters_are_found_again() -> None:
    points = [(n, perf_samples.throughput(n, 50.0, 0.05, 0.001)) for n in (1, 2, 4, 8, 16, 32, 64)]
    found = fit(points)
    assert found is not None
    assert (found.alone, found.contention, found.coherency) == pytest.approx((50.0, 0.05, 0.001), rel=1e-3)
    assert found.knee == pytest.approx(math.sqrt(0.95 / 0.001), rel=1e-3)
    assert not found.poor
    assert words(found, 64).startswith("More than about 31 callers bring no more throughput")
    assert words(found, 16).startswith("No knee up to 16 callers")


def test_linear_growth_has_no_knee() -> None:
    found = fit([(n, 10.0 * n) for n in (1, 2, 4, 8)])
    assert found is not None
    assert found.knee > 1000


def test_three_loads_are_too_few_for_a_law() -> None:
    assert fit([(1, 10.0), (2, 19.0), (4, 30.0)]) is None
    assert fit([(1, 10.0), (1, 11.0), (2, 19.0), (4, 30.0)]) is None


def test_a_poor_fit_is_said_and_draws_no_curve() -> None:
    zigzag = (100.0, 20.0, 130.0, 15.0, 120.0)
    found = fit([*zip((1, 2, 4, 8, 16), zigzag, strict=True)])
    assert found is not None
    assert found.poor
    assert "poorly" in words(found, 16)
    made = perf_samples.concurrencies((1, 2, 4, 8, 16))
    runs = tuple(replace(run, throughput=rate) for run, rate in zip(made.runs, zigzag, strict=True))
    chart = named(replace(made, runs=runs), "growth")
    assert {layer["mark"]["type"] for layer in chart.spec["layer"]} == {"point"}
    assert "poorly" in chart.words


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_a_picture_is_the_same_every_time_and_asks_for_nothing(colours: Any) -> None:
    first = named(perf_samples.concurrencies(), "latency-throughput")
    text = svg(first, colours)
    svg(named(perf_samples.devices(), "ratios"), colours)  # Vega counts its clip paths on
    assert svg(named(perf_samples.concurrencies(), "latency-throughput"), colours) == text
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.get("width") == "720"
    assert "sans-serif" in text
    assert colours.c1 in text
    assert not [part for part in ("<script", "<image", "@import", "url(http", "var(--") if part in text]


def test_hostile_names_are_escaped_in_pictures() -> None:
    made = perf_samples.devices()
    label = "</text><script>alert(1)</script>"
    runs = tuple(replace(run, subject=replace(run.subject, label=label + run.subject.label)) for run in made.runs)
    text = svg(named(replace(made, runs=runs), "throughput"), LIGHT)
    ElementTree.fromstring(text)
    assert "<script" not in text


def test_colours_shapes_and_dashes_do_not_repeat_together() -> None:
    assert math.lcm(len(LIGHT.category), len(SHAPES)) > 40
    assert math.lcm(len(LIGHT.category), len(DASHES)) > 30
    assert len(set(DARK.category)) == len(DARK.category)


def test_the_version_of_vega_lite_is_one_that_is_carried() -> None:
    import altair
    import vl_convert

    assert version("v6.1.0") == "6.1"
    assert version(altair.SCHEMA_VERSION) in vl_convert.get_vegalite_versions()
