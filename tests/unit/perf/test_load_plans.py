"""Plans, limits and service levels: text becomes values, and invalid text is refused with a fix."""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import UsageError
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Slo, parse_seconds
from hfx.perf.load.plans import parse_concurrency, parse_open, parse_rates, parse_trace, parse_warmup
from hfx.perf.loadgen.generate import check


@pytest.mark.parametrize(
    ("text", "callers"),
    [
        ("8", (8,)),
        ("1,2,4", (1, 2, 4)),
        ("1:64:2x", (1, 2, 4, 8, 16, 32, 64)),
        ("1:50:2x", (1, 2, 4, 8, 16, 32)),
        ("3:100:3x", (3, 9, 27, 81)),
        ("1:16:4", (1, 5, 9, 13)),
        ("1, 2, 8:32:2x", (1, 2, 8, 16, 32)),
        ("4,4,1", (4, 1)),
    ],
)
def test_concurrency_is_numbers_doubling_or_steps(text: str, callers: tuple[int, ...]) -> None:
    assert parse_concurrency(text) == callers


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "a", "1,,2", "1:8", "8:1:2x", "1:8:1x", "1:8:0", "1:8:-1", "0:8:2x", "1:8:2y",
     "1:9999999999:1", "1:99999999:1", "nan", "1:8:2:2", "١"],
)  # fmt: skip
def test_an_invalid_concurrency_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_concurrency(text)
    assert caught.value.fix


def test_rates_may_be_fractions() -> None:
    assert parse_rates("0.5,2:8:2x") == (0.5, 2, 4, 8)
    for text in ("", "a", "1:inf:2x"):
        with pytest.raises(UsageError):
            parse_rates(text)


@pytest.mark.parametrize(
    ("plan", "count", "times"),
    [
        (Open(4), 5, [0, 0.25, 0.5, 0.75, 1.0]),
        (Open(None, "burst"), 3, [0, 0, 0]),
        (Open(8, "burst", burst=4), 9, [0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5, 1.0]),
        (Open(arrivals="trace", trace=(0.0, 0.1, 0.1, 2.0)), None, [0, 0.1, 0.1, 2]),
        (Open(arrivals="trace", trace=(0.0, 0.1, 0.1, 2.0)), 2, [0, 0.1]),
    ],
)
def test_arrivals_are_even_or_at_once_or_those_of_a_trace(plan: Open, count: int | None, times: list[float]) -> None:
    assert list(plan.times(count)) == times


def test_poisson_gaps_are_exponential_and_follow_the_seed() -> None:
    times = list(Open(50, "poisson", seed=3).times(20_000))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert times == list(Open(50, "poisson", seed=3).times(20_000))
    assert times[1] != list(Open(50, "poisson", seed=4).times(2))[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Closed(0), lambda: Closed(10**9), lambda: Open(0), lambda: Open(-3), lambda: Open(float("inf")),
        lambda: Open(float("nan")), lambda: Open(None), lambda: Open(None, "poisson"),
        lambda: Open(None, "burst", burst=4), lambda: Open(4, "constant", burst=4), lambda: Open(4, "burst", burst=0),
        lambda: Open(arrivals="trace"), lambda: Open(5, "trace", (0.0, 1.0)),
        lambda: Open(arrivals="trace", trace=(1.0, 0.5)), lambda: parse_open(5, "poisson:3"),
        lambda: parse_open(5, "burst:x"), lambda: parse_open(5, "trace"),
        lambda: parse_open(5, "constant", Path("times.txt")),
    ],
)  # fmt: skip
def test_a_plan_that_can_not_be_carried_out_is_refused(make: object) -> None:
    with pytest.raises(UsageError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.fix


def test_arrival_options_are_parsed() -> None:
    assert parse_open(5, "poisson", seed=2) == Open(5, "poisson", seed=2)
    assert parse_open(None, "burst").at_once
    assert parse_open(32, "burst:16") == Open(32, "burst", burst=16)


@pytest.mark.parametrize(
    ("content", "times"),
    [
        ("0\n0.5\n0.5\n", (0, 0.5, 0.5)),
        ("100.5\n101\n\n# a word\n103\n", (0, 0.5, 2.5)),
        ("gap\n0\n0.5\n0.25\n", (0, 0.5, 0.75)),
        ("user,time\na,10\nb,12\n", (0, 2)),
        ("Time\r\n0\r\n1\r\n", (0, 1)),
        ('gap,text\n3,"a, b"\n1,c\n', (0, 1)),
    ],
)
def test_a_file_of_times_or_gaps(content: str, times: tuple[float, ...], tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(content, newline="")
    assert parse_trace(path) == pytest.approx(times)
    assert parse_open(None, "trace", path).trace == pytest.approx(times)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0\n2\n1\n", "line 3: the times go back"),
        ("0\nx\n", "line 2: 'x' is not a time"),
        ("0\n\nnan\n", "line 3"),
        ("a,b\n1,2\n", "no column time or gap, but a, b"),
        ("b,time\n1,2\n3\n", "line 3: '' is not a time"),
        ("time\n", "has no times"),
        ("\udcff", "can't be read"),
        ("gap\n1\n-1\n", "line 3: the times go back"),
    ],
)
def test_a_wrong_file_of_times_is_refused_by_line(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=words):
        parse_trace(path)


def test_a_file_of_times_with_an_endless_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("1" * 200_000)
    before = csv.field_size_limit(1 << 17)  # Python's own, which other tests may have raised
    try:
        with pytest.raises(UsageError, match="can't be read"):
            parse_trace(tmp_path / "times.csv")
    finally:
        csv.field_size_limit(before)


def test_durations_have_units() -> None:
    assert [parse_seconds(text) for text in ("10", "1.5s", "200ms", "50us", "50µs", "2m", "1h", "1e3ms")] == [
        10, 1.5, 0.2, 5e-5, 5e-5, 120, 3600, 1,
    ]  # fmt: skip
    for text in ("", "s", "-1s", "0", "1d", "1 0", "inf", "nan", "ten"):
        with pytest.raises(UsageError, match="The timeout is"):
            parse_seconds(text, "timeout")


def test_a_warm_up_is_requests_or_seconds() -> None:
    assert [parse_warmup(text) for text in ("20", "0", "2s", "500ms")] == [(20, 0), (0, 0), (0, 2), (0, 0.5)]
    for text in ("", "-1", "2.5", "x", "9" * 5000):
        with pytest.raises(UsageError, match="number of requests"):
            parse_warmup(text)


def test_a_plan_has_a_label_for_results() -> None:
    assert Closed(4).load("texts", "10 s").label == "4 callers"
    assert Open(50, "poisson").load("texts", "10 s", "chat").label == "chat, 50/s poisson"
    assert Open(None, "burst").load("texts", "512 requests").label == "all at once"
    assert Open(32, "burst", burst=16).load("texts", "5 s").label == "32/s burst of 16"
    trace = Open(arrivals="trace", trace=(0.0, 0.5, 1.0))
    assert trace.load("texts", "").label == "2/s trace" and trace.mean_rate == 2


# LoadLimits


@pytest.mark.parametrize(
    "limits",
    [{"requests": 0}, {"seconds": 0}, {"seconds": -1.0}, {"seconds": math.inf}, {"timeout": 0}, {"stable": 0},
     {"stable": math.nan}, {"window": 0}, {"warmup_requests": -1}, {"warmup_seconds": -1.0}],
)  # fmt: skip
def test_invalid_limits_of_a_load_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LoadLimits(**limits)


@pytest.mark.parametrize(
    ("plan", "limits"),
    [
        (Closed(1), LoadLimits()),
        (Open(5), LoadLimits(warmup_requests=5)),
        (Open(arrivals="burst"), LoadLimits(seconds=5)),
        (Open(arrivals="burst"), LoadLimits(requests=5, warmup_seconds=1)),
        (Open(arrivals="burst"), LoadLimits(requests=5, stable=5)),
    ],
)
def test_a_load_without_an_end_is_refused(plan: Plan, limits: LoadLimits) -> None:
    with pytest.raises(UsageError):
        check(plan, limits, None, stream=False)


def test_loads_with_an_end_are_taken() -> None:
    check(Closed(1), LoadLimits(stable=5), None, stream=False)
    check(Open(arrivals="trace", trace=(0.0, 1.0)), LoadLimits(), None, stream=False)
    check(Open(arrivals="burst"), LoadLimits(requests=5, warmup_requests=2), None, stream=False)


# Service levels


def test_bounds_have_names_and_units() -> None:
    slo = Slo.parse("ttft<200ms, tpot<=50000us,latency<2s")
    assert slo.bounds == {"ttft": 0.2, "tpot": 0.05, "latency": 2.0}
    assert slo.text == "ttft<200ms,tpot<=50000us,latency<2s"


@pytest.mark.parametrize(
    "text",
    ["", "latency", "latency<", "latency<2", "latency>2s", "p99<2s", "ttft<200ms,", "latency<2s,latency<1s",
     "latency<-1s", "latency<0s", "TTFT<1s", "latency<2s;ttft<1s"],
)  # fmt: skip
def test_an_invalid_slo_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Slo.parse(text)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "times", "kept"),
    [
        ("ttft<200ms,tpot<50ms,latency<2s", (1.9, 0.199, 0.049), True),
        ("ttft<200ms,tpot<50ms,latency<2s", (2.0, 0.1, 0.01), False),
        ("ttft<200ms,tpot<50ms,latency<2s", (1.0, 0.2, 0.01), False),
        ("ttft<200ms,tpot<50ms,latency<2s", (1.0, 0.1, 0.05), False),
        ("tpot<50ms", (1.0, 0.1), True),  # one token: there is no time between tokens to keep
        ("tpot<50ms", (1.0,), False),
        ("ttft<1s", (0.5,), False),
    ],
)
def test_an_slo_is_kept_only_if_all_its_bounds_hold(text: str, times: tuple[float, ...], kept: bool) -> None:
    assert Slo.parse(text).kept(*times) == kept


def test_times_of_tokens_are_refused_where_nothing_streams() -> None:
    check(Closed(1), LoadLimits(requests=1), Slo.parse("ttft<1s"), stream=True)
    check(Closed(1), LoadLimits(requests=1), Slo.parse("latency<1s"), stream=False)
    with pytest.raises(UsageError, match="answers are not streamed"):
        check(Closed(1), LoadLimits(requests=1), Slo.parse("latency<1s,tpot<1s"), stream=False)
