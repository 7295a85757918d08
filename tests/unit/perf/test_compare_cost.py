"""Prices, cost and the break-even load, compared with numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from hfx.errors import UsageError
from hfx.perf.compare.cost import Price, best, break_even, capacity, cost, parse_prices, with_prices
from hfx.perf.report.tables import best_table
from tests.rigs.files.perf_runs import result, run


def test_prices_are_read_with_and_without_a_currency() -> None:
    assert parse_prices(["cpu=0.34/h"]) == {"cpu": Price(0.34, "$")}
    assert parse_prices(["gpu=$4.10/h"]) == {"gpu": Price(4.10, "$")}
    assert parse_prices(["gpu=4€/hour"]) == {"gpu": Price(4.0, "€")}
    assert parse_prices(["instances=2=.5/h"]) == {"instances=2": Price(0.5, "$")}


@pytest.mark.parametrize("text", ["cpu", "cpu=0.34", "cpu=-1/h", "cpu=0/h", "=1/h", "cpu=1/min", "cpu=$1€/h"])
def test_an_invalid_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a price per hour"):
        parse_prices([text])


def test_prices_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_prices(["cpu=1/h", "cpu=2/h"])
    with pytest.raises(UsageError, match=r"\$ and €"):
        parse_prices(["cpu=1/h", "gpu=€2/h"])


def test_the_cost_of_requests_and_tokens_follows_from_the_price() -> None:
    # 3.60 an hour is 0.001 a second; 20 requests and 500 tokens a second.
    found = cost(Price(3.6, "$"), run(throughput=20.0, tokens_per_second=500.0))
    assert found is not None and found.per_1m_tokens is not None
    assert math.isclose(found.per_1k_requests, 0.05)  # 1000 requests take 50 s
    assert math.isclose(found.per_1m_tokens, 2.0)  # 2000 s
    assert (found.price_per_hour, found.currency) == (3.6, "$")
    assert cost(Price(3.6), run(throughput=0.0)) is None


def test_a_comparison_has_its_cost_and_break_even() -> None:
    runs = [run("cpu", 5.0), run("cpu", 10.0, callers=4), run("fp16", 100.0, callers=4, device="gpu")]
    priced = with_prices(result(*runs), parse_prices(["cpu=1/h", "gpu=4/h"]))  # fp16 has the price of its device
    assert priced.details["break even"] == {"cpu → fp16": "fp16 is cheaper than cpu above 40 requests/s"}
    table = best_table(priced)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["cpu"]["best load"] == "4 callers"
    assert rows["fp16"]["per 1M requests"] == "$11.1"
    assert table.notes == ("fp16 is cheaper than cpu above 40 requests/s.",)


def test_a_variant_that_held_the_slo_at_no_load_has_no_break_even() -> None:
    runs = [run("cpu", 5.0, goodput=1.0), run("gpu", 50.0, goodput=0.1)]
    priced = with_prices(result(*runs), parse_prices(["cpu=1/h", "gpu=4/h"]))
    assert priced.notes == ("gpu held the SLO at no load: no break-even.",)
    assert "break even" not in priced.details
    assert best_table(priced).rows[1][1] == "none within the SLO"


def test_the_best_load_has_the_highest_median_of_those_that_keep_the_slo() -> None:
    runs = [run("cpu", value, callers=1, round=number) for number, value in enumerate((10.0, 30.0, 11.0))]
    runs += [run("cpu", value, callers=4, round=number) for number, value in enumerate((20.0, 1.0, 21.0))]
    runs += [run("cpu", 30.0, callers=8, goodput=0.98), run("other", 10.0, interrupted=True)]
    assert {label: (group.load.concurrency, capacity(group)) for label, group in best(runs).items()} == {
        "cpu": (4, 20.0)
    }


def test_a_load_at_which_requests_fail_is_not_the_best_without_an_slo_either() -> None:
    runs = [run("cpu", 10.0, callers=1), run("cpu", 50.0, callers=8, succeeded=90)]
    assert best(runs)["cpu"].load.concurrency == 1


@pytest.mark.parametrize(
    ("cheap", "dear", "load"),
    [
        # Up to 40/s four of the cheap cost 4, a fifth makes it 5; from 100/s two dear ones cost 8, the cheap ones 11.
        ((1.0, 10.0), (4.0, 100.0), 40.0),
        # Cheaper from 30/s on, lost again several times, for the last time from 175/s to 180/s: 18 against 18.
        ((1.0, 10.0), (3.0, 35.0), 180.0),
        ((1.0, 10.0), (12.0, 100.0), None),  # a request of the dear one costs more
        ((1.0, 10.0), (2.0, 5.0), None),
        ((3.0, 10.0), (5.0, 15.0), None),  # cheaper between 10/s and 15/s, but not in the long run
        ((1.0, 10.0), (2.0, 20.0), None),  # equal cost of a request
        # At 30/s 0.1 * 3 is more than 0.3 in floating point, and equal in truth; the last tie is at 90/s.
        ((0.1, 10.0), (0.3, 40.0), 90.0),
    ],
)
def test_the_break_even_load_is_where_the_dear_variant_becomes_cheaper(
    cheap: tuple[float, float], dear: tuple[float, float], load: float | None
) -> None:
    """Each variant is (price, capacity)."""
    found = break_even(Price(cheap[0]), cheap[1], Price(dear[0]), dear[1])
    assert found == (None if load is None else pytest.approx(load))
