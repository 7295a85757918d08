"""The load driver with a server of one function: due times, what counts, and bugs of its own that are raised."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest

from hfx.perf.load import Closed, LoadLimits, Open, Plan
from hfx.perf.loadgen.driver import Driver, Windows
from hfx.perf.loadgen.log import COLUMNS, Progress, RequestLog, RequestRecord


class Server:
    """A server that answers after `seconds`, and then `factor` times as late each time."""

    def __init__(self, seconds: float = 0.0, factor: float = 1.0) -> None:
        self.sent: list[int] = []
        self._seconds, self._factor = seconds, factor

    async def send(self, record: RequestRecord) -> None:
        self.sent.append(record.index)
        record.sent = time.perf_counter()
        await asyncio.sleep(self._seconds)
        self._seconds *= self._factor
        record.end = time.perf_counter()


def driven(
    server: Server, plan: Plan, limits: LoadLimits, report: Callable[[Progress], None] = lambda progress: None
) -> RequestLog:
    async def run() -> RequestLog:
        return await Driver(plan, limits, server.send, RequestLog(), report).run()

    return asyncio.run(run())


def column(log: RequestLog, name: str) -> list[float]:
    return log.rows[COLUMNS.index(name) :: len(COLUMNS)].tolist()


@pytest.mark.parametrize("plan", [Closed(2), Open(100)])
def test_a_bug_of_the_driver_is_raised_and_not_counted_as_an_error(plan: Plan) -> None:
    class Broken(Server):
        async def send(self, record: RequestRecord) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driven(Broken(), plan, LoadLimits(seconds=5))


def test_the_requests_that_count_begin_with_the_first_whatever_the_warm_up_sent() -> None:
    server = Server()
    log = driven(server, Closed(1), LoadLimits(requests=4, warmup_requests=2))
    assert server.sent == [0, 1, 0, 1, 2, 3]
    assert column(log, "number") == [0, 1, 2, 3]


def test_a_burst_warms_up_one_by_one_before_its_clock_starts() -> None:
    server = Server(0.05)
    begin = time.perf_counter()
    log = driven(server, Open(arrivals="burst"), LoadLimits(requests=5, warmup_requests=2))
    due = column(log, "due")
    assert len(due) == 5 and len(set(due)) == 1 and due[0] - begin >= 0.1
    assert min(column(log, "end")) > max(column(log, "sent")), "all are sent before the first answer"


@pytest.mark.parametrize(
    ("plan", "limits", "times"),
    [
        (Open(10, "burst", burst=3), LoadLimits(requests=6), [0, 0, 0, 0.3, 0.3, 0.3]),
        (Open(arrivals="trace", trace=(0.0, 0.1, 0.5)), LoadLimits(), [0, 0.1, 0.5]),
        (Open(50), LoadLimits(requests=1000, seconds=0.2), [number / 50 for number in range(10)]),
    ],
)
def test_requests_are_sent_in_their_order_and_never_before_they_are_due(
    plan: Plan, limits: LoadLimits, times: list[float]
) -> None:
    log = driven(Server(0.2), plan, limits)
    due, sent = column(log, "due"), column(log, "sent")
    assert [at - due[0] for at in due] == pytest.approx(times)
    assert sent == sorted(sent) and all(at >= planned for at, planned in zip(sent, due, strict=True))


def test_requests_end_a_load_before_its_seconds() -> None:
    assert len(column(driven(Server(0.02), Closed(1), LoadLimits(requests=3, seconds=60)), "due")) == 3


def test_progress_has_the_phases_in_order_and_the_counts_of_each() -> None:
    progress: list[Progress] = []
    log = driven(Server(0.01), Open(100), LoadLimits(seconds=0.7, warmup_seconds=1.0), progress.append)
    phases = [phase for phase, _ in itertools.groupby(each.phase for each in progress)]
    assert phases == ["warmup", "counted", "draining"]
    counted = [each for each in progress if each.phase == "counted"]
    assert counted[0].succeeded == 0 and all(a.sent <= b.sent for a, b in itertools.pairwise(counted))
    last = progress[-1]
    assert (last.sent, last.succeeded, last.in_flight) == (70, 70, 0) and len(column(log, "due")) == 70
    assert last.p50 is not None and last.p99 is not None and 10 <= last.p50 <= last.p99
    assert 0 < last.throughput <= 110


def test_a_steady_server_is_stable_before_the_limit() -> None:
    log = driven(Server(0.01), Closed(4), LoadLimits(seconds=20, stable=60, window=0.15))
    due = column(log, "due")
    assert log.stable and not log.interrupted and due[0] <= log.since and due[-1] - due[0] < 10


def test_a_server_that_gets_slower_is_not_stable() -> None:
    log = driven(Server(0.005, factor=1.02), Closed(1), LoadLimits(seconds=1.0, stable=1, window=0.1))
    assert log.stable is False and not log.interrupted


def test_a_load_is_stable_when_its_last_three_windows_agree() -> None:
    windows = Windows(seconds=1.0, callers=1, per_cent=10)
    windows.start(0.0)

    def window(number: int, answers: int, latency: float) -> bool:
        for _ in range(answers):
            windows.add(latency)
        windows.tick(number + 1.0)
        return windows.stable

    assert [window(0, 50, 0.1), window(1, 100, 0.1), window(2, 104, 0.1)] == [False, False, False]
    assert [window(3, 108, 0.15), window(4, 106, 0.15), window(5, 105, 0.15)] == [False, False, True]
    assert windows.begin == 3.0


def test_a_window_with_too_few_answers_is_extended() -> None:
    windows = Windows(seconds=1.0, callers=20, per_cent=50)
    windows.start(0.0)
    for second in range(1, 10):
        for _ in range(10):
            windows.add(0.1)
        windows.tick(float(second))
        assert windows.stable == (second >= 6)  # a window every two seconds
