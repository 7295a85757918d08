"""Figures of a load from rows with known times: exact, except for the three digits of the histogram."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from hfx.perf.load import Closed, Open, Plan, Slo
from hfx.perf.loadgen.log import AnswerPart, RequestLog, RequestRecord, percentile
from hfx.perf.loadgen.stats import run_of, saturation
from hfx.perf.results import Run, Subject

DIGITS = 1e-3  # of the histogram, relative


def record(
    number: int, due: float, took: float, caller: int = 0, late: float = 0.0, error: Any = None
) -> RequestRecord:
    return RequestRecord(number, due, caller, due + late, due + took, error=error)


def streamed(number: int, due: float, times: list[float]) -> RequestRecord:
    """Return a stream with a token at each of these seconds after it was due."""
    found = record(number, due, times[-1])
    found.times = [due + each for each in times]
    found.messages = [str(at) for at in range(1, len(times) + 1)]
    found.messages[-1] += " end"
    return found


def read(message: str) -> AnswerPart:
    count, _, end = message.partition(" ")
    return AnswerPart(read=3, written=int(count), finish_reason=end)


def made(plan: Plan, *ended: RequestRecord, slo: str = "", stream: bool = False, **others: Any) -> Run:
    log = RequestLog(stream, stream, **{"cores": 0.1, "lags": array("d", [0.0] * 9)} | others)
    for each in ended:
        log.add(each, read if stream else None)
    judged = Slo.parse(slo) if slo else None
    return run_of(log, Subject("a", "a", "builtin"), plan.load("", ""), plan, judged)


def test_throughput_of_a_closed_load_ignores_idle_callers_at_its_end() -> None:
    """Two callers make 10 requests a second each; one ends a second earlier than the other."""
    busy = [record(at, at * 0.1, 0.1, caller=0) for at in range(20)]
    done = [record(20 + at, at * 0.1, 0.1, caller=1) for at in range(10)]
    found = made(Closed(2), *busy, *done)
    assert found.seconds == pytest.approx(2.0)
    assert found.throughput == pytest.approx(30 / 1.5)


def test_throughput_of_an_open_load_is_the_rate_of_its_answers() -> None:
    """10 a second for a second, each answered after 5 s: the server held the rate."""
    found = made(Open(10), *(record(at, at * 0.1, 5.0) for at in range(10)))
    assert (found.throughput, found.seconds) == pytest.approx((10, 5.9))
    assert made(Open(arrivals="burst"), *(record(at, 0.0, 2.0) for at in range(512))).throughput == pytest.approx(256)


def test_failed_requests_count_in_neither_throughput_nor_latency() -> None:
    good = [record(at, at * 0.1, 0.1) for at in range(10)]
    bad = [record(10, 1.0, 9.0, error=("ServerBusy", "full")), record(11, 1.1, 0.5, error=("RequestTimeout", "late"))]
    found = made(Open(10), *good, *bad)
    assert found.requests.sent == 12 and found.requests.succeeded == 10
    assert found.requests.timeouts == 1 and found.requests.errors == {"ServerBusy": 1}
    assert found.requests.words == {"ServerBusy": "full", "RequestTimeout": "late"}
    assert found.latency is not None and found.latency.max == pytest.approx(100, rel=DIGITS)
    assert found.throughput == pytest.approx(10)


@pytest.mark.parametrize("records", [[], [record(0, 0.0, 0.1, error=("ServerError", "no"))]])
def test_without_a_success_there_is_no_latency(records: list[RequestRecord]) -> None:
    found = made(Closed(1), *records)
    assert (found.latency, found.throughput, found.tokens) == (None, 0.0, None)


def test_ttft_tpot_and_gaps_follow_from_the_times_of_tokens() -> None:
    found = made(Closed(1), streamed(0, 0.0, [0.2, 0.25, 0.3, 0.4]), streamed(1, 1.0, [0.1]), stream=True)
    assert found.ttft is not None and (found.ttft.min, found.ttft.max) == pytest.approx((100, 200), rel=DIGITS)
    assert found.tpot is not None and found.tpot.count == 1
    assert found.tpot.p50 == pytest.approx(200 / 3, rel=DIGITS)
    assert found.gaps is not None and found.gaps.count == 3
    assert (found.gaps.min, found.gaps.max) == pytest.approx((50, 100), rel=DIGITS)
    assert found.tokens is not None and (found.tokens.read, found.tokens.written, found.tokens.each) == (6, 5, (4, 1))


@pytest.mark.parametrize(
    ("messages", "times", "ttft", "tpot"),
    [
        (["2", "8 end"], [0.2, 0.5], 200, 50),  # a message of several tokens
        (["0", "1 end"], [0.1, 0.4], 400, None),  # the first message has no token
        (["1", "2", "3 end"], [0.2, 0.2 + 2e-6, 0.2 + 4e-6], 200, None),  # read in one go: no time between them
    ],
)
def test_messages_with_several_or_no_tokens_do_not_distort_token_times(
    messages: list[str], times: list[float], ttft: float, tpot: float | None
) -> None:
    found = made(Closed(1), replace(streamed(0, 0.0, times), messages=messages), stream=True)
    assert found.ttft is not None and found.ttft.p50 == pytest.approx(ttft, rel=DIGITS)
    assert (found.tpot and found.tpot.p50) == (tpot and pytest.approx(tpot, rel=DIGITS))


def test_tokens_are_in_the_order_of_their_requests_whenever_they_ended() -> None:
    found = made(Closed(2), streamed(1, 0.0, [0.1]), streamed(0, 0.0, [0.1, 0.2, 0.3]), stream=True)
    assert found.tokens is not None and found.tokens.each == (3, 1)


@pytest.mark.parametrize(("last", "kind"), [("3", "ServerError"), ("3 cancelled", "RequestCancelled")])
def test_a_text_without_its_end_is_an_error(last: str, kind: str) -> None:
    cut = streamed(0, 0.0, [0.1, 0.2, 0.3])
    cut.messages[-1] = last
    found = made(Closed(1), cut, streamed(1, 1.0, [0.1]), stream=True)
    assert found.requests.errors == {kind: 1}
    assert found.gaps is None and found.tokens is not None and found.tokens.written == 1


def test_goodput_is_the_share_of_all_requests_that_kept_the_service_level() -> None:
    rows = [streamed(at, float(at), [0.1 + 0.02 * at, 0.3 + 0.02 * at]) for at in range(10)]
    failed = [record(10 + at, 10.0, 0.01, error=("ServerBusy", "full")) for at in range(10)]
    found = made(Closed(1), *rows, *failed, slo="ttft<195ms,latency<10s", stream=True)
    assert found.goodput == pytest.approx(5 / 20)


def test_only_the_last_windows_count_where_the_load_became_stable() -> None:
    rows = [streamed(at, float(at), [0.1] * (at + 1)) for at in range(6)]
    found = made(Closed(1), *rows, stream=True, since=4.0, stable=True)
    assert found.stable and found.requests.sent == 2
    assert found.gaps is not None and found.gaps.count == 4 + 5
    assert found.tokens is not None and found.tokens.written == 5 + 6


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"cores": 0.95}, "0.95 of a core"),
        ({"lag": 0.02}, "event loop was late by 20.0 ms"),
        ({"late": 0.03}, "sent up to 30.0 ms"),
        ({}, ""),
        ({"lag": 0.004}, ""),
        ({"lag": 0.02, "latency": 1.0}, ""),
        ({"late": 0.3, "latency": 1.0}, "300.0 ms"),
    ],
)
def test_the_client_is_blamed_when_it_was_its_fault(figures: dict[str, float], words: str) -> None:
    cores, others = figures.get("cores", 0.1), (figures.get(name) for name in ("lag", "late", "latency"))
    found = saturation(cores, *others)
    assert (words in found) and bool(found) == bool(words)


def test_a_rate_that_the_client_can_not_send_is_its_fault() -> None:
    client = made(Open(1000), *(record(at, at * 0.001, 9.0, late=at * 0.001) for at in range(100))).client
    assert client is not None and client.saturated.startswith("requests were sent at 50% of the rate")


@pytest.mark.parametrize(("cores", "single_core", "saturated"), [(0.97, True, True), (1.7, False, False)])
def test_a_full_core_is_the_limit_of_a_client_that_can_use_one_only(
    cores: float, single_core: bool, saturated: bool
) -> None:
    client = made(Closed(1), record(0, 0.0, 0.1), cores=cores, single_core=single_core).client
    assert client is not None and client.cores == cores and bool(client.saturated) == saturated


def test_late_sends_saturate_the_client_only_under_an_open_load() -> None:
    rows = [record(at, at * 0.1, 0.05, late=0.04) for at in range(50)]
    for plan, blamed in ((Open(10), True), (Closed(1), False)):
        client = made(plan, *rows).client
        assert client is not None and bool(client.saturated) == blamed


def test_a_percentile_is_the_nearest_value() -> None:
    assert percentile([], 0.5) is None
    assert percentile(array("d", [3, 1, 2]), 0.5) == 2
    assert percentile([1.0], 0.99) == 1
    assert percentile(range(100), 0.99) == 98
