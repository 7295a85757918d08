"""Results as tables: numbers, figures, rows, ratios, verdicts, and what stands first."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hfx.perf.report.comparisons import comparison_table, comparison_tables, ratio_of
from hfx.perf.report.figures import FIGURES, main
from hfx.perf.report.limits import roofline_table
from hfx.perf.report.numbers import count, number, percent, ratio_spread, size, spread
from hfx.perf.report.sparkline import sparkline
from hfx.perf.report.table import Table, to_lines, to_markdown, to_value
from hfx.perf.report.tables import (
    Goal,
    cost_table,
    details_table,
    goals,
    goals_table,
    machine_table,
    published_table,
    run_table,
    server_table,
    steps,
    steps_table,
    warnings,
)
from hfx.perf.report.trials import beaten, trials, trials_table
from hfx.perf.results import Load, Spread, Tokens, groups
from tests.unit import perf_samples

WIDEST = 120  # columns of a terminal that a comparison fits


def column(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)] for row in table.rows]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (0, "0"), (0.012345, "0.0123"), (0.9996, "1.00"), (1.2345, "1.23"), (9.996, "10.0"),
        (99.95, "100"), (12345.6, "12,300"), (-4.321, "-4.32"), (1e-9, "0.00000000100"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_a_number_has_three_significant_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_share_is_only_all_or_nothing_when_it_is() -> None:
    assert [percent(share) for share in (1.0, 0.9999, 0.5, 0.00001, 0.0, None)] == [
        "100 %", "> 99.9 %", "50.0 %", "< 0.01 %", "0 %", "–",
    ]  # fmt: skip


def test_sizes_and_counts() -> None:
    assert [size(3 << 30), size(1536), size(12), count(1234567)] == ["3.00 GiB", "1.50 KiB", "12 B", "1,234,567"]


def test_a_range_stands_only_where_there_is_one() -> None:
    assert spread(Spread(12.0, 11.0, 13.0, 3), "ms") == "12.0 (11.0–13.0)"
    assert spread(Spread(12.0, 12.0, 12.0, 3), "ms") == "12.0"
    assert spread(Spread(0.5, 0.4, 0.6, 3), "share") == "50.0 % (40.0–60.0)"
    assert ratio_spread(Spread(2.0, 1.9, 2.2, 3)) == "2.00× (1.90–2.20)"
    assert spread(None, "ms") == "–"


def test_every_figure_has_a_name_of_its_own_and_takes_any_run() -> None:
    runs = [run for make in perf_samples.ALL for run in make().runs]
    bare = replace(runs[0], latency=None, server=None, client=None, cost=None, roofline=None, goodput=None)
    for name, figure in FIGURES.items():
        assert figure.name == name
        assert all(value is None or value >= 0 for value in map(figure.of, [*runs, bare]))


def test_ways_are_compared_by_tokens_only_where_all_write_them() -> None:
    writers = perf_samples.generator().runs
    assert main(writers).name == "tokens"
    assert main((*writers, perf_samples.run("other", 1, 50.0, 1))).name == "throughput"


def test_the_run_table_has_a_row_for_each_load_and_leaves_out_what_was_not_measured() -> None:
    table = run_table(perf_samples.concurrencies())
    assert column(table, "load") == ["1 caller", *(f"{each} callers" for each in (2, 4, 8, 16, 32))]
    assert column(table, "answered")[-1] == "391 of 400"
    assert "tokens/s" not in table.columns


def test_rounds_are_one_row_with_their_median() -> None:
    table = run_table(perf_samples.devices())
    assert len(table.rows) == 6
    assert table.notes == ("Medians of 3 rounds (least–most).",)


def test_the_servers_steps_are_averages_over_the_requests_of_all_rounds() -> None:
    one, other = perf_samples.run("a", 1, 50.0, 1), perf_samples.run("a", 4, 50.0, 1)
    joined = {step.model: step for step in steps([one, other])}["sentiment_net"]
    assert one.server is not None
    assert other.server is not None
    parts = [next(step for step in run.server.steps if step.model == "sentiment_net") for run in (one, other)]  # type: ignore[union-attr]
    assert joined.requests == 800
    assert joined.queue == pytest.approx((parts[0].queue + parts[1].queue) / 2)
    assert len(steps_table(perf_samples.concurrencies()).rows) == 18


def test_ratios_are_of_the_same_round_and_load() -> None:
    made = perf_samples.devices()
    found = groups(made.runs)
    value = ratio_of(found[1], found, "cpu", FIGURES["throughput"])
    by_hand = [
        gpu.throughput / cpu.throughput for cpu, gpu in zip(found[0].runs, found[1].runs, strict=True)
    ]  # fmt: skip
    assert value is not None
    assert (value.least, value.most) == (min(by_hand), max(by_hand))
    assert ratio_of(found[0], found, "cpu", FIGURES["throughput"]) is None


def test_callers_who_wait_are_held_against_a_batch_of_as_many_rows() -> None:
    batch = perf_samples.run("torch", 8, 40.0, 1)
    batch = replace(batch, load=Load("batch", concurrency=8, case="16 words"))
    ours = perf_samples.run("hfx", 8, 80.0, 1)
    ours = replace(ours, load=Load("closed", concurrency=8, case="16 words"))
    made = replace(perf_samples.peers(), runs=(batch, ours))
    assert column(comparison_table(made), "requests/s / torch") == ["–", "2.00×"]


def test_a_peer_that_wrote_other_tokens_gets_no_ratio() -> None:
    made = perf_samples.peers()
    runs = tuple(
        replace(run, tokens=Tokens(100, 500 if run.subject.label == "torch" else 450, ())) for run in made.runs
    )
    table = comparison_table(replace(made, runs=runs))
    assert "requests/s / torch" not in table.columns


def test_what_was_not_run_is_said_and_has_no_number() -> None:
    made = perf_samples.one_device()
    table = comparison_table(made)
    assert "gpu was not run: this machine has no GPU." in table.notes
    assert set(column(table, "way")) == {"cpu"}
    assert not [name for name in table.columns if "/ cpu" in name]


def test_a_long_base_is_not_repeated_in_every_head() -> None:
    made = perf_samples.devices()
    runs = tuple(replace(run, subject=replace(run.subject, label=f"{run.subject.label}, slots=8")) for run in made.runs)
    table = comparison_table(replace(made, runs=runs, base="cpu, slots=8"))
    assert "tokens/s ratio" in table.columns


@pytest.mark.parametrize("make", perf_samples.ALL)
def test_the_parts_of_a_comparison_fit_a_terminal(make: perf_samples.Make) -> None:
    for table in comparison_tables(make()):
        assert max(map(len, to_lines(table))) <= WIDEST


def test_failures_stand_before_everything_else() -> None:
    made = perf_samples.concurrencies()
    found = warnings(replace(made, machine=replace(made.machine, load=7.5), notes=("a note",)))
    assert found == (
        "sentiment, 32 callers: 9 of 400 requests failed: 7 ServerBusy (its queue is full), "
        "2 timed out (no answer in 60 s).",
        "sentiment, 32 callers: the client kept 0.97 of a core busy: it may be the limit.",
        "a note",
        "The machine had other work at the start (load average 7.50).",
    )


def test_cautions_that_differ_only_in_numbers_stand_once() -> None:
    made = perf_samples.concurrencies((1, 2, 4))
    runs = tuple(
        replace(run, notes=(f"the loop was late by {7 * index}.5 ms.",)) for index, run in enumerate(made.runs)
    )
    assert warnings(replace(made, runs=(*runs[:2], replace(runs[2], requests=runs[0].requests, client=None)))) == (
        "sentiment, 1 caller: the loop was late by 0.5 ms. Alike: 2 callers, 4 callers.",
    )


def test_goals_are_met_missed_or_not_measured() -> None:
    made = perf_samples.peers()
    assert column(goals_table(goals(made)), "verdict") == ["met", "missed", "not measured"]
    assert Goal("x", 2.0, least=1.0).detail() == {"value": 2.0, "least": 1.0}
    assert Goal("x", 2.0, most=1.0).met is False


def test_costs_figures_of_others_limits_and_the_machine() -> None:
    assert column(cost_table(perf_samples.devices()), "an hour")[:2] == ["0.340 $", "4.10 $"]
    assert not cost_table(perf_samples.concurrencies())
    assert published_table(perf_samples.peers()).notes
    assert column(roofline_table(perf_samples.concurrencies()), "reached") == ["41.7 %"] * 6
    assert ("GPU", "Example GPU 80 GiB") in machine_table(perf_samples.devices()).rows
    assert not server_table(perf_samples.peers())
    assert details_table(perf_samples.tuning()).rows == (("chosen", "trial 5"), ("slo", "latency<100ms"))


def test_the_front_of_a_tuning_is_what_nothing_beats() -> None:
    points = [(10.0, 5.0), (20.0, 9.0), (15.0, 9.0), (20.0, 10.0)]
    assert [beaten(point, points) for point in points] == [False, False, True, True]
    found = trials(perf_samples.tuning())
    best = [(trial.more, trial.less) for trial in found if trial.best]
    assert best
    assert not [1 for trial in found if not trial.best and all(not _beats(point, trial) for point in best)]
    assert "chosen" in column(trials_table(perf_samples.tuning()), "verdict")
    assert not trials_table(perf_samples.devices())


def test_a_trial_that_was_stopped_early_beats_nobody() -> None:
    made = perf_samples.tuning()
    fastest = max(trials(made), key=lambda trial: trial.more).group.subject.label
    stopped = replace(made, details={"stopped early": [fastest]})
    verdicts = dict(zip(*[column(trials_table(stopped), name) for name in ("trial", "verdict")], strict=True))
    assert verdicts[fastest] == "stopped early"
    assert "best" in verdicts.values()


def test_a_table_in_a_terminal_is_aligned_and_an_empty_one_prints_nothing() -> None:
    lines = to_lines(Table("T", ("name", "n"), (("日本", "1"), ("a", "10")), 1, ("note",)))
    assert lines == ["T", "name   n", "日本   1", "a     10", "  note"]
    assert to_lines(Table("T", (), ())) == []
    assert to_value(Table("T", ("a",), (("b",),))) == {"title": "T", "columns": ["a"], "rows": [["b"]]}


def test_markdown_escapes_what_would_be_markup() -> None:
    text = to_markdown(Table("T", ("a", "b"), (("x|y\n<b>", "1"),)))
    assert text == "| a | b |\n|---|---:|\n| x\\|y \\<b> | 1 |\n"
    assert to_markdown(Table("T", (), ())) == ""


def test_a_sparkline_is_as_long_as_its_last_values() -> None:
    assert sparkline([0, 5, None, 10], width=3) == "▅ █"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_no_table_has_a_ragged_row() -> None:
    for make in perf_samples.ALL:
        made = make()
        for table in (run_table(made), server_table(made), steps_table(made), *comparison_tables(made)):
            assert {len(row) for row in table.rows} <= {len(table.columns)}
            assert not re.search(r"\bnan\b|None", "\n".join(to_lines(table)))


def _beats(point: tuple[float, float], trial: object) -> bool:
    return point[0] >= trial.more and point[1] <= trial.less  # type: ignore[attr-defined]
