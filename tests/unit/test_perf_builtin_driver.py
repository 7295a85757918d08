"""The driver with a door of a few lines: what counts, and that nothing of its own gets lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from hfx.client.address import Access, parse_address
from hfx.perf.builtin.driver import Driver, Job, News, Outcome
from hfx.perf.builtin.records import Record, Recorder
from hfx.perf.load import Closed, Limits, Open, Plan

MESSAGES = (b"a", b"b", b"c")


class Door:
    """Answers by a function."""

    def __init__(self, answer: Callable[[bytes, Record], Awaitable[None]]) -> None:
        self.asked: list[bytes] = []
        self._answer = answer

    async def connect(self) -> None:
        pass

    async def ask(self, message: bytes, record: Record) -> None:
        self.asked.append(message)
        record.sent = time.perf_counter()
        await self._answer(message, record)
        record.end = time.perf_counter()

    async def close(self) -> None:
        pass


async def at_once(message: bytes, record: Record) -> None:
    await asyncio.sleep(0)


def driven(door: Door, plan: Plan, limits: Limits, news: list[News] | None = None) -> Outcome:
    job = Job(parse_address("127.0.0.1:1"), Access(), plan, limits, MESSAGES, stream=False, counts=False)
    tell = (lambda each: None) if news is None else news.append

    async def run() -> Outcome:
        return await Driver(job, door, Recorder(None, lambda words: ("", words), False), tell).run()

    return asyncio.run(run())


def test_a_fault_of_our_own_is_raised_and_not_counted_as_an_error() -> None:
    async def broken(message: bytes, record: Record) -> None:
        raise ZeroDivisionError

    for plan in (Closed(2), Open(100)):
        with pytest.raises(ZeroDivisionError):
            driven(Door(broken), plan, Limits(seconds=5))


def test_the_requests_that_count_begin_with_the_first_whatever_the_warm_up_asked() -> None:
    door = Door(at_once)
    outcome = driven(door, Closed(1), Limits(requests=4, warmup_requests=2))
    assert door.asked == [b"a", b"b", b"a", b"b", b"c", b"a"]
    assert list(outcome.tape.number) == [0, 1, 2, 3]


def test_a_burst_warms_up_one_by_one_before_its_clock_starts() -> None:
    begun: list[float] = []

    async def slow(message: bytes, record: Record) -> None:
        begun.append(time.perf_counter())
        await asyncio.sleep(0.05)

    outcome = driven(Door(slow), Open(arrivals="burst"), Limits(requests=5, warmup_requests=2))
    assert begun[1] - begun[0] >= 0.05 and begun[2] - begun[1] >= 0.05
    assert len(outcome.tape.due) == 5 and len(set(outcome.tape.due)) == 1
    assert all(due >= begun[1] + 0.05 for due in outcome.tape.due)


def test_requests_and_seconds_end_a_load_whichever_comes_first() -> None:
    async def slow(message: bytes, record: Record) -> None:
        await asyncio.sleep(0.02)

    assert len(driven(Door(slow), Closed(1), Limits(requests=3, seconds=60)).tape.due) == 3
    few = driven(Door(slow), Open(50), Limits(requests=1000, seconds=0.2))
    assert len(few.tape.due) == 10


def test_news_tell_of_all_that_succeeded_once() -> None:
    news: list[News] = []
    driven(Door(at_once), Open(200), Limits(seconds=0.7), news)
    assert sum(len(each.latencies) for each in news) == 140
    assert news[-1].succeeded == 140 and news[-1].in_flight == 0
    assert [each.phase for each in news if each.phase != "counted"] == ["draining"] * 2
