"""Carries out a plan: who sends what when, what of it counts, and when it is over.

Owns the clock of the sender. Requests are bytes before the clock starts, and answers are bytes until it has stopped. A
request of an open plan counts from the moment it was due, however late it could be sent. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from hfx.client.address import Access, Address
from hfx.errors import ServerUnreachable
from hfx.perf.builtin.doors import Door
from hfx.perf.builtin.records import Record, Recorder, Tape
from hfx.perf.builtin.strain import Gauge, Strain
from hfx.perf.builtin.windows import Windows
from hfx.perf.load import Limits
from hfx.perf.load.plans import Closed, Open, Plan

NEWS_SECONDS = 0.25
DEAD_SECONDS = 3.0  # without anything but broken connections: the server is gone
BACK_OFF_SECONDS = 0.1  # of a caller whose connection broke
LONGEST_NAP = 0.1  # so often a sender who waits for its time looks whether all is over
FEWEST_BROKEN = 3
ROUNDING = 1e-6  # seconds: 50 a second for 3 seconds are 150 requests
Phase = Literal["warmup", "counted", "draining"]
UNREACHABLE = ServerUnreachable.__name__


@dataclass(frozen=True)
class Job:
    """All that a process needs to put a load to a server. `counts`: answers tell their tokens."""

    address: Address
    access: Access
    plan: Plan
    limits: Limits
    messages: tuple[bytes, ...]
    stream: bool
    counts: bool


@dataclass(frozen=True)
class News:
    """A load under way; `latencies` are seconds of the requests that succeeded since the last news."""

    phase: Phase
    at: float
    elapsed: float
    sent: int
    succeeded: int
    failed: int
    in_flight: int
    latencies: array[float]


@dataclass(frozen=True)
class Outcome:
    """A load that is over. Of the tape, rows that were due before `since` do not count."""

    tape: Tape
    strain: Strain
    began: str
    since: float
    stable: bool | None
    interrupted: bool
    notes: tuple[str, ...]


class Driver:
    """One load; `tell` is called with News and must not take long."""

    def __init__(self, job: Job, door: Door, recorder: Recorder, tell: Callable[[News], None]) -> None:
        self._job = job
        self._door = door
        self._recorder = recorder
        self._tell = tell
        self._gauge = Gauge()
        self._windows = _windows(job)
        self._seconds = job.limits.most_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._phase: Phase = "warmup"
        self._over = self._interrupted = False
        self._notes: list[str] = []
        self._fault: BaseException | None = None  # of our own: a failed request is none
        self._sent = self._succeeded = self._failed = self._in_flight = self._warm = 0
        self._fresh = array("d")
        self._origin = self._since = time.perf_counter()
        self._began = _now()
        self._alive = self._origin  # when something else than a broken connection came last
        self._broken = 0  # connections since

    async def run(self) -> Outcome:
        """Carry it out."""
        plan = self._job.plan
        others = [asyncio.create_task(self._gauge.watch()), asyncio.create_task(self._report())]
        self._origin = self._alive = time.perf_counter()
        try:
            await (self._closed(plan) if isinstance(plan, Closed) else self._open(plan))
        finally:
            for task in others:
                task.cancel()
        if self._fault is not None:
            raise self._fault
        self._gauge.stop()
        self._news()
        stable = self._windows.stable if self._windows else None
        since = self._windows.begin if self._windows and stable else self._since
        tape, strain = self._recorder.finish(), self._gauge.found()
        return Outcome(tape, strain, self._began, since, stable, self._interrupted, tuple(self._notes))

    def stop(self) -> None:
        """End it early: what is under way is cancelled and does not count."""
        self._over = self._interrupted = True
        for task in self._tasks:
            task.cancel()

    async def _closed(self, plan: Closed) -> None:
        for caller in range(plan.callers):
            self._spawn(self._caller(caller))
        await self._finished()

    async def _caller(self, caller: int) -> None:
        while (record := self._next(time.perf_counter(), caller)) is not None:
            await self._send(record)
            if record.error is not None and record.error[0] == UNREACHABLE:
                await asyncio.sleep(BACK_OFF_SECONDS)

    async def _open(self, plan: Open) -> None:
        limits = self._job.limits
        if plan.at_once:  # one after the other before the clock starts
            for _ in range(limits.warmup_requests):
                if (record := self._next(time.perf_counter(), 0)) is not None:
                    self._spawn(self._send(record))
                    await self._finished()
        self._origin = time.perf_counter()
        for at in plan.times(limits.requests if plan.at_once else None, None):
            due = self._origin + at
            if self._is_past(due):
                break
            await self._until(due)
            if (record := self._next(due, 0)) is None:
                break
            self._spawn(self._send(record))
        self._drain()
        await self._finished()

    async def _until(self, due: float) -> None:
        while (wait := due - time.perf_counter()) > 0 and not self._over:
            await asyncio.sleep(min(wait, LONGEST_NAP))

    async def _finished(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _send(self, record: Record) -> None:
        messages = self._job.messages
        self._in_flight += 1
        try:
            await self._door.ask(messages[record.ask % len(messages)], record)
        except asyncio.CancelledError:
            self._sent -= record.number >= 0  # as if it had not been asked
            raise
        finally:
            self._in_flight -= 1
        self._note(record)

    def _next(self, due: float, caller: int) -> Record | None:
        """The request that is due then; None where there is to be no more."""
        limits = self._job.limits
        if self._over:
            return None
        if self._phase == "warmup":
            if self._warm < limits.warmup_requests or due - self._origin < limits.warmup_seconds - ROUNDING:
                self._warm += 1
                return Record(-self._warm, due, caller)
            self._count(due)
        if self._is_past(due) or self._sent == limits.requests:
            self._drain()
            return None
        self._sent += 1
        return Record(self._sent - 1, due, caller)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None and self._fault is None:
            self._fault = fault
            self.stop()

    def _note(self, record: Record) -> None:
        """A request has ended."""
        if record.error is None or record.error[0] != UNREACHABLE:
            self._alive, self._broken = record.end, 0
        else:
            self._broken += 1
        if record.number < 0:
            return
        self._recorder.add(record)
        if record.error is not None:
            self._failed += 1
            return
        self._succeeded += 1
        self._fresh.append(record.end - record.due)
        if self._windows:
            self._windows.add(record.end - record.due)

    def _is_past(self, due: float) -> bool:
        return self._phase != "warmup" and self._seconds is not None and due - self._since > self._seconds - ROUNDING

    def _count(self, due: float) -> None:
        """The warm-up is over with the request that is due then."""
        self._phase, self._since = "counted", due
        self._began = _now()
        self._gauge.start()
        if self._windows:
            self._windows.start(due)
        self._news()

    def _drain(self) -> None:
        if self._phase == "counted":
            self._phase = "draining"
            self._news()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(NEWS_SECONDS)
            self._news()
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        """End the load where the server is gone, or all is known."""
        if self._broken >= FEWEST_BROKEN and now - self._alive >= DEAD_SECONDS and not self._over:
            self._notes.append(f"The server was gone for {now - self._alive:.0f} s: the load was ended early.")
            self.stop()
        if self._windows and self._phase == "counted":
            self._windows.tick(now)
            if self._windows.stable:
                self._over = True
                self._drain()

    def _news(self) -> None:
        now, fresh = time.perf_counter(), self._fresh
        self._fresh = array("d")
        counts = (self._sent, self._succeeded, self._failed, self._in_flight)
        self._tell(News(self._phase, now, now - self._origin, *counts, fresh))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _windows(job: Job) -> Windows | None:
    if job.limits.stable is None:
        return None
    callers = job.plan.callers if isinstance(job.plan, Closed) else 1
    return Windows(job.limits.window, callers, job.limits.stable)
