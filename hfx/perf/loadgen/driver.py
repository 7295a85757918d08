"""Carries out a plan: decides when each request is sent, which requests count, and when the load ends.

Requests are encoded before the clock starts. In an open plan, the latency of a request counts from the moment when it
was due, even if it was sent late. This module does not depend on the protocol.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hfx.errors import ServerUnreachable
from hfx.perf.load.plans import Closed, LoadLimits, Open, Plan
from hfx.perf.loadgen.log import Phase, Progress, Read, RequestLog, RequestRecord, percentile, timestamp

REPORT_SECONDS = 0.25
RECENT_SECONDS = 1.0  # the time that the figures of a Progress cover
LAG_SECONDS = 0.02  # interval between measurements of the event loop's lag
DEAD_SECONDS = 3.0  # after this time with only broken connections, the server counts as dead
MIN_BROKEN = 3
BACK_OFF_SECONDS = 0.1  # pause of a caller whose connection broke
MAX_SLEEP = 0.1  # longest sleep before the next check for the end of the load
ROUNDING = 1e-6  # seconds of tolerance, so that 50/s for 3 s are exactly 150 requests
NEEDED = 3  # consecutive windows that must agree
FEWEST_ANSWERS = 10  # per window
UNREACHABLE = ServerUnreachable.__name__


Send = Callable[[RequestRecord], Awaitable[None]]


class Driver:
    """Carries out `plan` within `limits`.

    `send` sends a request and fills in its record. Records that count are appended to `log`, which parses the answers
    with `read`. `report` is called in the event loop, and must return quickly.
    """

    def __init__(
        self,
        plan: Plan,
        limits: LoadLimits,
        send: Send,
        log: RequestLog,
        report: Callable[[Progress], None] = lambda progress: None,
        read: Read | None = None,
    ) -> None:
        self._plan, self._limits, self._transmit, self._log = plan, limits, send, log
        self._report, self._read = report, read
        callers = plan.callers if isinstance(plan, Closed) else 1
        self._windows = None if limits.stable is None else Windows(limits.window, callers, limits.stable)
        self._tasks: set[asyncio.Task[None]] = set()
        self._phase: Phase = "warmup"
        self._over = False
        self._fault: BaseException | None = None  # an error in hfx itself; failed requests are in the log
        self._sent = self._succeeded = self._failed = self._in_flight = self._warm = 0
        self._recent: deque[tuple[float, float]] = deque()  # (end, latency) of the answers in the last second
        self._origin = self._since = time.perf_counter()
        self._began = (self._origin, time.process_time())
        self._alive = self._origin  # time of the last outcome other than a broken connection
        self._broken = 0  # broken connections since then

    async def run(self) -> RequestLog:
        """Carry out the plan, and return the log. Raises any exception that `send` was not expected to raise."""
        log, plan = self._log, self._plan
        log.began = timestamp()
        others = [asyncio.create_task(self._measure_lag()), asyncio.create_task(self._watch())]
        self._origin = self._alive = time.perf_counter()
        try:
            await (self._closed(plan) if isinstance(plan, Closed) else self._open(plan))
        finally:
            for task in others:
                task.cancel()
        if self._fault is not None:
            raise self._fault
        wall, used = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        log.cores = used / wall if wall > 0 else 0.0
        log.stable = self._windows.stable if self._windows else None
        log.since = self._windows.begin if self._windows and log.stable else self._since
        self._report_progress()
        return log

    def stop(self) -> None:
        """End the load early. Requests in flight are cancelled, and do not count."""
        self._over = self._log.interrupted = True
        for task in self._tasks:
            task.cancel()

    async def _closed(self, plan: Closed) -> None:
        for caller in range(plan.callers):
            self._spawn(self._call(caller))
        await self._finished()

    async def _call(self, caller: int) -> None:
        while (record := self._next(time.perf_counter(), caller)) is not None:
            await self._send(record)
            if record.error is not None and record.error[0] == UNREACHABLE:
                await asyncio.sleep(BACK_OFF_SECONDS)

    async def _open(self, plan: Open) -> None:
        limits = self._limits
        if plan.at_once:  # send the warm-up, one request at a time, before the clock starts
            for _ in range(limits.warmup_requests):
                if (record := self._next(time.perf_counter(), 0)) is not None:
                    self._spawn(self._send(record))
                    await self._finished()
        self._origin = time.perf_counter()
        for at in plan.times(limits.requests if plan.at_once else None):
            due = self._origin + at
            if self._is_past(due):
                break
            while (wait := due - time.perf_counter()) > 0 and not self._over:
                await asyncio.sleep(min(wait, MAX_SLEEP))
            if (record := self._next(due, 0)) is None:
                break
            self._spawn(self._send(record))
        self._drain()
        await self._finished()

    async def _finished(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _next(self, due: float, caller: int) -> RequestRecord | None:
        """Return a record for the next request, which is due at `due`; None if the load is over."""
        limits = self._limits
        if self._over:
            return None
        if self._phase == "warmup":
            if self._warm < limits.warmup_requests or due - self._origin < limits.warmup_seconds - ROUNDING:
                self._warm += 1
                return RequestRecord(-self._warm, due, caller)
            self._begin(due)
        if self._is_past(due) or self._sent == limits.requests:
            self._drain()
            return None
        self._sent += 1
        return RequestRecord(self._sent - 1, due, caller)

    async def _send(self, record: RequestRecord) -> None:
        counts = record.number >= 0
        self._in_flight += 1
        try:
            await self._transmit(record)
        except asyncio.CancelledError:
            self._sent -= counts  # count the request as not sent
            raise
        finally:
            self._in_flight -= 1
        if record.error is None or record.error[0] != UNREACHABLE:
            self._alive, self._broken = record.end, 0
        else:
            self._broken += 1
        if counts:
            self._count(record)

    def _count(self, record: RequestRecord) -> None:
        self._log.add(record, self._read)
        if record.error is not None:
            self._failed += 1
            return
        self._succeeded += 1
        latency = record.end - record.due
        self._recent.append((record.end, latency))
        if self._windows:
            self._windows.add(latency)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None and self._fault is None:
            self._fault = fault
            self.stop()

    def _is_past(self, due: float) -> bool:
        seconds = self._limits.most_seconds
        return self._phase != "warmup" and seconds is not None and due - self._since > seconds - ROUNDING

    def _begin(self, due: float) -> None:
        """End the warm-up. The request that is due at `due` is the first request that counts."""
        self._phase, self._since = "counted", due
        self._log.began = timestamp()
        self._began = (time.perf_counter(), time.process_time())
        self._log.lags = array("d")
        self._recent.clear()
        if self._windows:
            self._windows.start(due)
        self._report_progress()

    def _drain(self) -> None:
        if self._phase == "counted":
            self._phase = "draining"
            self._report_progress()

    async def _measure_lag(self) -> None:
        while True:
            due = time.perf_counter() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._log.lags.append(max(0.0, time.perf_counter() - due))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self._report_progress()
            self._check(time.perf_counter())

    def _check(self, now: float) -> None:
        """End the load if the server is dead, or if the figures are stable."""
        if self._broken >= MIN_BROKEN and now - self._alive >= DEAD_SECONDS and not self._over:
            self._log.notes += (f"The server was gone for {now - self._alive:.0f} s: the load was ended early.",)
            self.stop()
        if self._windows and self._phase == "counted":
            self._windows.tick(now)
            if self._windows.stable:
                self._over = True
                self._drain()

    def _report_progress(self) -> None:
        now, recent = time.perf_counter(), self._recent
        while recent and recent[0][0] < now - RECENT_SECONDS:
            recent.popleft()
        latencies = [1e3 * latency for _, latency in recent]
        seconds = min(RECENT_SECONDS, now - self._began[0])
        self._report(
            Progress(
                phase=self._phase,
                elapsed=now - self._origin,
                sent=self._sent,
                succeeded=self._succeeded,
                failed=self._failed,
                in_flight=self._in_flight,
                throughput=len(recent) / seconds if seconds > 0 else 0.0,
                p50=percentile(latencies, 0.5),
                p99=percentile(latencies, 0.99),
            )
        )


class Windows:
    """Stability by perf_analyzer's criterion: three consecutive windows agree in throughput and median latency.

    Windows agree if the largest value is at most `per_cent` above the smallest. A window has at least `seconds`, and at
    least as many answers as there are `callers` (and at least FEWEST_ANSWERS).
    """

    def __init__(self, seconds: float, callers: int, per_cent: float) -> None:
        self._seconds = seconds
        self._fewest = max(FEWEST_ANSWERS, callers)
        self._factor = 1 + per_cent / 100
        self._done: list[tuple[float, float, float]] = []  # (begin, requests per second, median latency in seconds)
        self._begin = 0.0
        self._latencies: list[float] = []

    @property
    def stable(self) -> bool:
        """Whether the last NEEDED windows agree."""
        last = self._done[-NEEDED:]
        if len(last) < NEEDED:
            return False
        rates, times = [rate for _, rate, _ in last], [latency for _, _, latency in last]
        return max(rates) <= self._factor * min(rates) and max(times) <= self._factor * min(times)

    @property
    def begin(self) -> float:
        """The time at which the first of the last NEEDED windows began."""
        return self._done[-NEEDED][0]

    def start(self, now: float) -> None:
        """Begin the first window at `now` (time.perf_counter)."""
        self._begin = now

    def add(self, latency: float) -> None:
        """Add the `latency` of a successful request in seconds to the window."""
        self._latencies.append(latency)

    def tick(self, now: float) -> None:
        """End the window if it is long enough."""
        seconds, count = now - self._begin, len(self._latencies)
        if seconds < self._seconds or count < self._fewest:
            return
        self._done.append((self._begin, count / seconds, statistics.median(self._latencies)))
        self._begin, self._latencies = now, []
