"""Prices, cost and the break-even load against numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from hfx.errors import UsageError
from hfx.perf.compare.cost import (
    Best,
    Price,
    best,
    break_even,
    check_labels,
    cost,
    parse_price,
    parse_prices,
    priced,
    with_costs,
)
from hfx.perf.results import Load
from tests.unit.perf_compare_runs import run

ANY = Load(kind="closed", concurrency=1)


def even(cheap: tuple[float, float], dear: tuple[float, float]) -> tuple[float | None, float | None]:
    """(first, always) of sides given as (price, capacity)."""
    found = break_even(
        Best("cheap", ANY, cheap[1]), Price("cheap", cheap[0]), Best("dear", ANY, dear[1]), Price("dear", dear[0])
    )
    return found.first, found.always


def test_prices_are_read_with_and_without_a_currency():
    assert parse_price("cpu=0.34/h") == Price("cpu", 0.34)
    assert parse_price("gpu=$4.10/h") == Price("gpu", 4.10, "$")
    assert parse_price("gpu=4€/hour") == Price("gpu", 4.0, "€")
    assert parse_price("instances=2=.5/h") == Price("instances=2", 0.5)


@pytest.mark.parametrize(
    "text", ["cpu", "cpu=0.34", "cpu=-1/h", "cpu=0/h", "=1/h", "cpu=1/min", "cpu=$1€/h", "cpu=1e3/h"]
)
def test_what_is_no_price_is_refused(text: str):
    with pytest.raises(UsageError, match="is no price of an hour"):
        parse_price(text)


def test_prices_of_one_side_or_in_two_currencies_are_refused():
    with pytest.raises(UsageError, match="twice"):
        parse_prices(["cpu=1/h", "cpu=2/h"])
    with pytest.raises(UsageError, match=r"\$ and none"):
        parse_prices(["cpu=1/h", "gpu=$2/h"])


def test_a_price_of_nobody_names_those_who_are_compared():
    with pytest.raises(UsageError) as caught:
        check_labels(parse_prices(["tpu=1/h"]), ["cpu", "gpu", "cpu"])
    assert "Compared are: cpu, gpu." in str(caught.value)


def test_cost_of_requests_and_tokens():
    # 3.60 an hour is 0.001 a second; 20 requests and 500 tokens a second.
    found = cost(Price("cpu", 3.6, "$"), 20.0, 500.0)
    assert found is not None
    assert math.isclose(found.per_1k_requests, 0.05)  # 1000 requests take 50 s
    assert found.per_1m_tokens is not None and math.isclose(found.per_1m_tokens, 2.0)  # 2000 s
    assert (found.price_per_hour, found.currency) == (3.6, "$")


def test_nothing_measured_costs_nothing_that_could_be_said():
    assert cost(Price("cpu", 3.6), 0.0) is None


def test_only_runs_with_a_price_are_told_their_cost():
    cpu, gpu = with_costs([run("cpu", 20.0), run("gpu", 200.0)], parse_prices(["cpu=3.6/h"]))
    assert cpu.cost is not None and math.isclose(cpu.cost.per_1k_requests, 0.05)
    assert gpu.cost is None


def test_a_side_without_a_price_of_its_own_has_that_of_its_device():
    runs = [run("int8", 20.0, device="cpu"), run("fp32", 10.0, device="cpu"), run("torch", 5.0)]
    found = priced(runs, parse_prices(["cpu=3.6/h", "fp32=7.2/h"]))
    assert {label: price.per_hour for label, price in found.items()} == {"int8": 3.6, "fp32": 7.2}


def test_the_best_load_is_that_with_the_highest_median():
    runs = [run("cpu", value, callers=1, round=number) for number, value in enumerate((10.0, 30.0, 11.0))]
    runs += [run("cpu", value, callers=4, round=number) for number, value in enumerate((20.0, 1.0, 21.0))]
    found = best(runs)["cpu"]
    assert (found.load.concurrency, found.throughput, found.kept) == (4, 20.0, None)


def test_a_load_that_breaks_the_slo_does_not_count():
    runs = [run("cpu", 10.0, callers=1, slo="latency<1s", goodput=1.0)]
    runs += [run("cpu", 20.0, callers=4, slo="latency<1s", goodput=0.99)]
    runs += [run("cpu", 30.0, callers=8, slo="latency<1s", goodput=0.98)]
    runs += [run("gpu", 90.0, callers=8, slo="latency<1s", goodput=0.5)]
    found = best(runs)
    assert (found["cpu"].throughput, found["cpu"].kept) == (20.0, 0.99)
    assert "gpu" not in found


def test_an_interrupted_run_is_no_best():
    assert best([run("cpu", 10.0, interrupted=True)]) == {}


def test_break_even_where_the_dear_side_replaces_several():
    # 1 an hour for 10/s against 4 for 100/s. Up to 40/s four of the cheap cost 4; a fifth makes it 5.
    # From 100/s two dear ones cost 8, when the cheap ones cost 11.
    assert even((1.0, 10.0), (4.0, 100.0)) == (40.0, 40.0)


def test_break_even_that_is_lost_again_for_a_while():
    # 1 for 10/s against 3 for 35/s: cheaper from 30/s (4 against 3) to 35/s; then 6 against 4, till 60/s (6 against 6
    # at 70/s, 7 for the cheap from 60/s on); at 70/s 7 against 6, above it 8 against 9, from 90/s on 10 against 9, at
    # 105/s 11 against 9, then 11 against 12 up to 110/s, from 120/s on 13 against 12; 140: 14 against 12; then 15, 15
    # up to 150, then 16 against 15; 175: 18 against 15, then 18 against 18 up to 180; 210: 21 against 18, 21 (19 to
    # 21), then 22 against 21. A request costs 0.1 against 0.0857: from 3 / 0.0143 = 210/s on it is settled.
    assert even((1.0, 10.0), (3.0, 35.0)) == (30.0, 180.0)


def test_no_break_even_where_a_request_of_the_dear_side_costs_more():
    assert even((1.0, 10.0), (12.0, 100.0)) == (None, None)
    assert even((1.0, 10.0), (2.0, 5.0)) == (None, None)


def test_whole_instances_can_favour_the_dear_side_though_not_for_ever():
    # 3 for 10/s against 5 for 15/s: between 10/s and 15/s two cheap ones cost 6 and one dear 5.
    assert even((3.0, 10.0), (5.0, 15.0)) == (10.0, None)


def test_equal_cost_of_a_request_never_ends_the_steps():
    assert even((1.0, 10.0), (2.0, 20.0)) == (None, None)


def test_rounding_does_not_make_a_break_even():
    # 0.1 for 10/s against 0.3 for 40/s: at 30/s 0.1 * 3 is more than 0.3 in floating point, and equal in truth. The
    # last tie is at 90/s, 0.9 against three times 0.3; at 100/s it is 1.0 against 0.9.
    assert even((0.1, 10.0), (0.3, 40.0)) == (30.0, 90.0)


@pytest.mark.parametrize(
    ("cheap", "dear"), [((1.0, 10.0), (3.0, 35.0)), ((0.34, 7.3), (4.1, 161.0)), ((1.0, 3.0), (1.5, 10.0))]
)
def test_the_steps_agree_with_a_plain_search(cheap: tuple[float, float], dear: tuple[float, float]):
    def costs(load: float) -> tuple[float, float]:
        return tuple(math.ceil(round(load / capacity, 9)) * price for price, capacity in (cheap, dear))

    first, always = even(cheap, dear)
    assert first is not None and always is not None
    grid = [step / 100 for step in range(1, 60_000)]
    saving = [load for load in grid if costs(load)[0] - costs(load)[1] > 1e-9]
    losing = [load for load in grid if costs(load)[0] - costs(load)[1] <= 1e-9]
    assert first <= saving[0] <= first + 0.02
    assert abs(losing[-1] - always) <= 0.02
