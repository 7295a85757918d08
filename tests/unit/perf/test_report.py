"""Results as text, tables and charts: numbers, rows, ratios, verdicts, and the charts of each kind of result."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from hfx.perf.report.answer import answer
from hfx.perf.report.charts import DARK, LIGHT, Chart, charts, svg
from hfx.perf.report.figures import FIGURES, main, milliseconds, number, percent, size, sparkline, spread
from hfx.perf.report.tables import (
    Table,
    beaten,
    comparison_tables,
    ratio_of,
    run_table,
    server_table,
    steps_table,
    to_lines,
    trials,
    trials_table,
    warnings,
)
from hfx.perf.results import Result, Run
from hfx.perf.rounds import Spread, groups, steps
from tests.rigs.files import perf_samples
from tests.rigs.files.perf_samples import concurrencies, devices, generator, one_device, tuning

MAX_WIDTH = 120  # columns of a terminal that a comparison fits


def column(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)] for row in table.rows]


# Numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (0, "0"), (0.012345, "0.0123"), (0.9996, "1.00"), (9.996, "10.0"), (12345.6, "12,300"),
        (-4.321, "-4.32"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_a_number_has_three_significant_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_no_time_is_shown_below_the_clocks_resolution() -> None:
    times = (None, 0.0, 0.001, 0.0123, 0.5, 12.345)
    assert [milliseconds(time) for time in times] == ["–", "0.00", "< 0.01", "0.01", "0.50", "12.3"]


def test_a_share_is_only_all_or_nothing_when_it_is() -> None:
    shares = (1.0, 0.9999, 0.5, 0.00001, 0.0, None)
    assert [percent(share) for share in shares] == ["100 %", "> 99.9 %", "50.0 %", "< 0.01 %", "0 %", "–"]
    assert [size(3 << 30), size(1536), size(12)] == ["3.00 GiB", "1.50 KiB", "12 B"]


def test_a_range_is_shown_only_if_rounds_differ() -> None:
    assert spread(Spread(12.0, 11.0, 13.0, 3), "ms") == "12.0 (11.0–13.0)"
    assert spread(Spread(12.0, 12.0, 12.0, 3), "ms") == "12.0"
    assert spread(Spread(0.5, 0.4, 0.6, 3), "share") == "50.0 % (40.0–60.0)"
    assert spread(Spread(2.0, 1.9, 2.2, 3), "ratio") == "2.00× (1.90–2.20)"


def test_a_sparkline_is_as_long_as_its_last_values() -> None:
    assert [sparkline([0, 5, None, 10], width=3), sparkline([0, 0]), sparkline([])] == ["▅ █", "▁▁", ""]


# Tables


def test_variants_are_compared_by_tokens_only_where_all_write_them() -> None:
    writers = generator().runs
    assert main(writers).name == "tokens"
    assert main((*writers, concurrencies().runs[0])).name == "throughput"


def test_the_run_table_has_a_row_for_each_load_and_leaves_out_what_was_not_measured() -> None:
    table = run_table(concurrencies())
    assert column(table, "load") == ["1 caller", *(f"{each} callers" for each in (2, 4, 8, 16, 32))]
    assert column(table, "answered")[-1] == "391 of 400"
    assert "tokens/s" not in table.columns


def test_the_servers_steps_are_averages_over_the_requests_of_all_rounds() -> None:
    runs = concurrencies((1, 4)).runs
    joined = next(step for step in steps(runs) if step.model == "sentiment_net")
    parts = [step for run in runs if run.server for step in run.server.steps if step.model == "sentiment_net"]
    assert joined.requests == 800
    assert joined.queue == pytest.approx((parts[0].queue + parts[1].queue) / 2)
    assert len(steps_table(concurrencies()).rows) == 18


def test_ratios_are_of_the_same_round_and_load() -> None:
    found = groups(devices().runs)
    value = ratio_of(found[1], found, "cpu", FIGURES["throughput"])
    by_hand = [gpu.throughput / cpu.throughput for cpu, gpu in zip(found[0].runs, found[1].runs, strict=True)]
    assert value is not None
    assert (value.least, value.most) == (min(by_hand), max(by_hand))
    assert ratio_of(found[0], found, "cpu", FIGURES["throughput"]) is None


def test_a_variant_that_was_not_run_is_noted_without_figures() -> None:
    tables = comparison_tables(one_device())
    assert "gpu was not run: this machine has no GPU." in tables[-1].notes
    assert {variant for table in tables for variant in column(table, "variant")} == {"cpu"}
    assert not [name for table in tables for name in table.columns if "/ cpu" in name]


def test_failures_stand_before_everything_else() -> None:
    made = concurrencies()
    found = warnings(replace(made, machine=replace(made.machine, load=7.5), notes=("a note",)))
    assert found[0] == (
        "sentiment, 32 callers: 9 of 400 requests failed: 7 ServerBusy (its queue is full), "
        "2 timed out (no answer in 60 s)."
    )
    assert found[2] == "a note" and "load average 7.50" in found[3]


def test_cautions_that_differ_only_in_numbers_stand_once() -> None:
    made = concurrencies((1, 2, 32))
    runs = tuple(replace(run, notes=(f"it was late by {n} ms.",)) for n, run in enumerate(made.runs[:2]))
    said = ("sentiment, 1 caller: it was late by 0 ms. The same at 2 callers.",)
    assert warnings(replace(made, runs=runs)) == said


def test_the_pareto_front_of_a_tuning_holds_the_unbeaten_trials() -> None:
    points = [(10.0, 5.0), (20.0, 9.0), (15.0, 9.0), (20.0, 10.0)]
    assert [beaten(point, points) for point in points] == [False, False, True, True]
    found = trials(tuning())
    best = [(trial.rate, trial.p99) for trial in found if trial.best]
    assert best and all(beaten((trial.rate, trial.p99), best) for trial in found if not trial.best)
    assert "chosen" in column(trials_table(tuning()), "verdict")
    assert "unbeaten" in {trial.verdict for trial in found}


def test_a_table_in_a_terminal_is_aligned_and_an_empty_one_prints_nothing() -> None:
    lines = to_lines(Table("T", ("name", "n"), (("日本", "1"), ("a", "10")), 1, ("note",)))
    assert lines == ["T", "name   n", "日本   1", "a     10", "  note"]
    assert to_lines(Table("T", (), ())) == []
    alone = Table("Load", ("variant", "load", "p50"), (("a", "1 caller", "1.5"), ("a", "2 callers", "2")), 2)
    assert to_lines(alone) == ["Load: a", "load       p50", "1 caller   1.5", "2 callers    2"]
    assert to_lines(replace(alone, rows=(*alone.rows, ("b", "1 caller", "3"))))[0] == "Load"


@pytest.mark.parametrize("make", perf_samples.ALL)
def test_tables_are_whole_and_those_of_a_comparison_fit_a_terminal(make: perf_samples.Make) -> None:
    for table in (run_table(make()), server_table(make()), steps_table(make()), *comparison_tables(make())):
        assert {len(row) for row in table.rows} <= {len(table.columns)}
        assert not re.search(r"\bnan\b|None", "\n".join(to_lines(table)))
    assert max(len(line) for table in comparison_tables(make()) for line in to_lines(table)) <= MAX_WIDTH


# The answer


def cards(result: Result) -> dict[str, str]:
    return {card.title: card.value for card in answer(result).cards}


def test_the_most_load_within_the_slo_is_answered_first() -> None:
    result = replace(concurrencies(), runs=concurrencies().runs[:-1])  # without the load that had errors
    assert answer(result).sentence == "sentiment holds 310 requests/s within latency<100ms with 16 callers."
    found = cards(result)
    assert found["Most load within the SLO"] == "310 requests/s"
    assert found["Bottleneck step"] == "sentiment_net"
    assert "Try more load" in found["Next"]
    assert "failed requests" in cards(concurrencies())["Next"], "before any other advice"
    busy = replace(result, machine=replace(result.machine, load=99.0))
    assert "idle machine" in cards(busy)["Next"], "as the warning says"


def test_where_no_load_keeps_the_slo_the_nearest_is_said() -> None:
    runs = (replace(run, goodput=0.5 / (index + 1)) for index, run in enumerate(concurrencies((1, 2)).runs))
    found = answer(replace(concurrencies(), runs=tuple(runs)))
    assert found.sentence == "No load kept latency<100ms: at best 50.0 % of the requests did, with 1 caller."
    assert "hfx tune sentiment" in found.cards[0].value
    assert not answer(replace(concurrencies(), runs=())).cards


def test_a_comparison_says_how_much_more_the_best_holds_and_what_it_costs() -> None:
    assert "9.40× that of cpu under the same load" in answer(devices()).sentence
    assert cards(devices())["Cost per million requests"] == "$3.86"


def test_a_base_that_holds_most_is_compared_with_the_next_best_not_with_itself() -> None:
    made = replace(devices(), base="gpu")
    found = answer(made).sentence
    assert "gpu holds" in found and "of gpu" not in found and "the best of cpu" in found
    assert "×" not in answer(replace(made, runs=tuple(r for r in made.runs if r.subject.label == "gpu"))).sentence


def test_a_tuning_says_its_verdict_and_what_to_write() -> None:
    details: Any = {"verdict": "Proven: x1.6.", "proven": True, "settings": {"instances": 2}, "chosen": "trial 5"}
    result = replace(tuning(), details=details)
    assert answer(result).sentence == "Proven: x1.6."
    assert "--apply" in cards(result)["Next"]
    assert "sentiment" in cards(replace(result, details={**details, "applied": "sentiment"}))["Next"]


# Charts

DRAWN = {
    "concurrencies": ["latency-throughput", "latency-cdf", "steps"],
    "generator": ["latency-throughput", "latency-cdf", "first-token", "steps"],
    "devices": ["throughput", "latency-throughput", "latency-cdf", "first-token", "steps"],
    "one_device": ["latency-throughput", "latency-cdf", "first-token", "steps"],
    "cases": ["throughput", "latency-cdf-16-words", "latency-cdf-128-words"],
    "tuning": ["front", "throughput", "latency-cdf", "steps"],
}


def named(result: Result, name: str) -> Chart:
    return next(chart for chart in charts(result) if chart.name == name)


def rows(chart: Chart) -> list[dict[str, Any]]:
    """Return all data of a chart, whichever layer holds it."""
    parts = [part["data"] for part in (chart.spec, *chart.spec["layer"]) if "data" in part]
    return [row for part in parts for row in chart.spec["datasets"][part["name"]]]


@pytest.mark.parametrize("make", perf_samples.ALL)
def test_only_charts_with_data_are_drawn(make: perf_samples.Make) -> None:
    found = charts(make())
    assert [chart.name for chart in found] == DRAWN[make.__name__]
    for chart in found:
        assert rows(chart) and len(chart.description) > 20
        json.dumps(chart.spec, allow_nan=False)


def test_nothing_is_drawn_of_a_result_without_runs_or_of_one_trial() -> None:
    assert charts(replace(concurrencies(), runs=())) == []
    assert charts(replace(tuning(), runs=tuning().runs[:1])) == []
    assert [chart.name for chart in charts(concurrencies((4,)))] == ["latency-cdf", "steps"]


def test_a_variant_that_answered_nothing_has_no_line_and_takes_no_other_away() -> None:
    def dead(run: Run) -> Run:
        nothing: Any = dict.fromkeys(("latency", "server", "ttft", "tpot")) | {"throughput": 0.0}
        return replace(run, tokens_per_second=0.0, **nothing) if run.subject.label == "gpu" else run

    runs = tuple(map(dead, devices().runs))
    found = named(replace(devices(), runs=runs), "latency-throughput")
    assert {row["variant"] for row in rows(found)} == {"cpu"}
    assert charts(replace(devices(), runs=tuple(run for run in runs if run.subject.label == "gpu"))) == []


def test_the_points_are_the_medians_of_the_table() -> None:
    drawn = {row["value"] for row in rows(named(devices(), "throughput")) if row["bar"] == "16 callers: gpu"}
    assert drawn == {statistics.median(run.tokens_per_second or 0.0 for run in devices().runs[5::6])}


def test_the_cdf_rises_from_nothing_to_all() -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows(named(concurrencies(), "latency-cdf")):
        lines.setdefault(row["line"], []).append((row["ms"], row["share"]))
    assert len(lines) == 6
    assert all(points == sorted(points) and points[-1][1] == 1.0 for points in lines.values())


@pytest.mark.slow
@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_a_picture_is_the_same_every_time_loads_nothing_and_takes_any_name(colours: dict[str, str]) -> None:
    names = {"cpu": "</text><script>alert(1)</script>", "gpu": "gpu"}
    runs = (replace(run, subject=replace(run.subject, label=names[run.subject.label])) for run in devices().runs)
    hostile = replace(devices(), runs=tuple(runs))
    pictures = [named(concurrencies(), "latency-throughput"), named(hostile, "throughput")]
    texts = [svg(chart, colours) for chart in pictures]
    assert [svg(chart, colours) for chart in pictures] == texts  # although Vega counts its clip paths on
    for text in texts:
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert not [part for part in ("<script", "<image", "@import", "url(http", "var(--") if part in text]
