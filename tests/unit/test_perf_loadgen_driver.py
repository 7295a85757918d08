"""The driver with a transport of a few lines: what counts, and that no defect of its own is hidden."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from hfx.perf.load import Closed, Limits, Open, Plan
from hfx.perf.loadgen.driver import Driver
from hfx.perf.loadgen.log import COLUMNS, Progress, RequestLog, RequestRecord


class Transport:
    """Answers by a function."""

    def __init__(self, answer: Callable[[], Awaitable[None]]) -> None:
        self.sent: list[int] = []
        self._answer = answer

    async def send(self, record: RequestRecord, log: RequestLog | None) -> None:
        self.sent.append(record.index)
        record.sent = time.perf_counter()
        await self._answer()
        record.end = time.perf_counter()
        if log is not None:
            log.add(record)


async def at_once() -> None:
    await asyncio.sleep(0)


def driven(
    transport: Transport, plan: Plan, limits: Limits, progress: list[Progress] | None = None
) -> dict[str, list[float]]:
    """The columns of the log."""
    report = (lambda each: None) if progress is None else progress.append

    async def run() -> RequestLog:
        return await Driver(plan, limits, transport, RequestLog(), report).run()

    rows = asyncio.run(run()).rows
    return {name: rows[at :: len(COLUMNS)].tolist() for at, name in enumerate(COLUMNS)}


def test_a_fault_of_our_own_is_raised_and_not_counted_as_an_error() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    for plan in (Closed(2), Open(100)):
        with pytest.raises(ZeroDivisionError):
            driven(Transport(broken), plan, Limits(seconds=5))


def test_the_requests_that_count_begin_with_the_first_whatever_the_warm_up_asked() -> None:
    transport = Transport(at_once)
    columns = driven(transport, Closed(1), Limits(requests=4, warmup_requests=2))
    assert transport.sent == [0, 1, 0, 1, 2, 3]
    assert columns["number"] == [0, 1, 2, 3]


def test_a_burst_warms_up_one_by_one_before_its_clock_starts() -> None:
    begun: list[float] = []

    async def slow() -> None:
        begun.append(time.perf_counter())
        await asyncio.sleep(0.05)

    columns = driven(Transport(slow), Open(arrivals="burst"), Limits(requests=5, warmup_requests=2))
    assert begun[1] - begun[0] >= 0.05 and begun[2] - begun[1] >= 0.05
    assert len(columns["due"]) == 5 and len(set(columns["due"])) == 1
    assert all(due >= begun[1] + 0.05 for due in columns["due"])


def test_requests_and_seconds_end_a_load_whichever_comes_first() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)

    assert len(driven(Transport(slow), Closed(1), Limits(requests=3, seconds=60))["due"]) == 3
    few = driven(Transport(slow), Open(50), Limits(requests=1000, seconds=0.2))
    assert len(few["due"]) == 10


def test_progress_tells_what_was_sent_and_has_succeeded() -> None:
    progress: list[Progress] = []
    driven(Transport(at_once), Open(200), Limits(seconds=0.7), progress)
    assert (progress[-1].sent, progress[-1].succeeded, progress[-1].in_flight) == (140, 140, 0)
    assert [each.phase for each in progress if each.phase != "counted"] == ["draining"] * 2
