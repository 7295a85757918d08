"""The Result of a comparison: cost, break-even, and the table of what each side held."""

from __future__ import annotations

from hfx.perf.compare.cost import BreakEven, parse_prices
from hfx.perf.compare.outcome import break_even_words, outcome
from hfx.perf.compare.summary import best_table
from hfx.perf.results import Gpu, Run, ServerSide
from tests.unit.perf_compare_runs import MACHINE, run

CPU_SIDE = ServerSide(cores=2.0)
GPU_SIDE = ServerSide(cores=0.5, gpus=(Gpu("A"), Gpu("B")))


def both(**more: object) -> list[Run]:
    return [
        run("cpu", 5.0, device="cpu", server=CPU_SIDE, **more),
        run("cpu", 10.0, callers=4, device="cpu", server=CPU_SIDE, **more),
        run("gpu", 100.0, callers=4, device="gpu", server=GPU_SIDE, **more),
    ]


def test_costs_and_break_even_are_those_of_the_best_load():
    found = outcome("t", "c", both(), [], parse_prices(["cpu=1/h", "gpu=4/h"]), where=MACHINE)
    assert found.details["break even"] == {"cpu → gpu": "gpu is cheaper than cpu above 40.0 requests/s"}
    assert [round(each.cost.per_1k_requests, 6) for each in found.runs if each.cost] == [0.055556, 0.027778, 0.011111]
    table = best_table(found)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["cpu"]["best load"] == "4 callers"
    assert rows["cpu"]["requests/s a core"] == "5.00" and rows["cpu"]["requests/s a GPU"] == "–"
    assert rows["gpu"]["requests/s a GPU"] == "50.0" and rows["gpu"]["per 1k requests"] == "0.0111"
    assert table.notes == ("gpu is cheaper than cpu above 40.0 requests/s.",)


def test_a_side_that_held_the_slo_at_no_load_has_no_break_even():
    runs = [*both(slo="latency<1s", goodput=1.0), run("int8", 50.0, slo="latency<1s", goodput=0.1, device="cpu")]
    found = outcome("t", "c", runs, ["a note"], parse_prices(["cpu=1/h"]), where=MACHINE)
    assert found.notes == ("a note", "int8 held the SLO at no load: no break-even.")
    row = next(row for row in best_table(found).rows if row[0] == "int8")
    assert row[1] == "none within the SLO" and set(row[2:]) == {"–"}


def test_without_prices_nothing_is_said_of_money():
    found = outcome("t", "c", both(), where=MACHINE)
    assert found.details == {} and all(each.cost is None for each in found.runs)
    assert found.base == "cpu"


def test_a_single_load_without_prices_needs_no_second_table():
    assert not best_table(outcome("t", "c", [run("a", 1.0), run("b", 2.0)], where=MACHINE))


def test_peers_of_other_lengths_are_noted():
    runs = [run("hfx", 1.0, written=(8,)), run("torch", 1.0, written=(7,), peer="torch")]
    found = outcome("t", "c", runs, where=MACHINE)
    assert found.notes == ("torch, 1 caller: no ratio, torch wrote 7 tokens, hfx 8 in round 1.",)


def test_break_even_in_words():
    def words(first: float | None, always: float | None) -> str:
        return break_even_words(BreakEven("cpu", "gpu", first, always))

    assert words(None, None) == "gpu is cheaper than cpu at no load"
    assert words(40.0, 40.0) == "gpu is cheaper than cpu above 40.0 requests/s"
    assert (
        words(30.0, 180.0) == "gpu is cheaper than cpu above 180 requests/s, and at some loads from 30.0 requests/s on"
    )
    lost = "gpu is cheaper than cpu at some loads from 10.0 requests/s on, but not in the long run"
    assert words(10.0, None) == lost
