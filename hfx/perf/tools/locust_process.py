"""locust's process: started, followed by the records of its users, ended in time, and never left behind.

Owns when a run is over. It must not know what is asked.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import LoadFailed, UsageError
from hfx.perf.builtin import Progress
from hfx.perf.builtin.strain import percentile
from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.tools.requested import Ended
from hfx.perf.tools.running import Running

POLL_SECONDS = 0.1
SHOWN_SECONDS = 1.0  # that a Progress is about
START_SECONDS = 60.0  # until the first request: imports, and a connection for each user
END_SECONDS = 10.0  # its reports
AFTER_SECONDS = 0.3  # a little more than ordered is sent, and left out of the figures


@dataclass(frozen=True)
class Job:
    """One run: the command, what it is to do, how many requests an open plan has, and its files."""

    command: tuple[str, ...]
    plan: Plan
    limits: Limits
    times: int
    records: Path
    output: Path


def carried_out(job: Job, watch: Callable[[Progress], None] | None, stop: threading.Event | None) -> Ended:
    """Run it to its end, or until STOP is set. Raises LoadFailed with what it says where it ends by itself."""
    course = Course(job)
    with Running(job.command, job.output) as running:
        interrupted = _follow(running, course, watch, stop)
        cores = course.cores
        running.end_input()  # lets requests under way end, and its reports be written
        running.wait(job.limits.timeout + END_SECONDS)
    return Ended(cores, in_one_thread=True, interrupted=interrupted)


class Course:
    """How far a run has come, by what its users wrote down."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._read = 0  # bytes of the records
        self._started = self._moved = time.monotonic()
        self._first: float | None = None  # when the first request was due
        self._since: float | None = None  # when the first was that counts
        self._recent: deque[tuple[float, float]] = deque()  # when a request ended, and how long it took
        self._used = (self._started, 0.0)
        self._ended = self._failed = self._counted = 0
        self.cores = 0.0

    def look(self, used: float) -> Progress:
        """What is known now; USED are the processor seconds of locust."""
        with self._job.records.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line), used)
        if used and self._since is not None:
            seconds = time.monotonic() - self._used[0]
            self.cores = (used - self._used[1]) / seconds if seconds > 0 else 0.0
        return self._progress()

    @property
    def is_over(self) -> bool:
        """Whether all has ended that was ordered."""
        if self._job.times:
            return self._ended >= self._job.times
        if self._since is None:
            return False
        limits, callers = self._job.limits, self._callers
        if limits.requests is not None and self._counted >= limits.requests + callers:
            return True
        most = limits.most_seconds
        return most is not None and time.time() - self._since >= most + AFTER_SECONDS

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has ended for longer than any request may take."""
        return not self._ended and time.monotonic() - self._moved > self._job.limits.timeout + START_SECONDS

    @property
    def _callers(self) -> int:
        return self._job.plan.callers if isinstance(self._job.plan, Closed) else 0

    def _is_warm(self, now: float) -> bool:
        """Whether the warm-up is over, though nothing that counts may have ended yet."""
        limits = self._job.limits
        if self._since is not None or not (limits.warmup_requests or limits.warmup_seconds):
            return True
        begun = self._first is not None and now - self._first >= limits.warmup_seconds
        return begun and self._ended >= limits.warmup_requests

    def _take(self, record: dict[str, Any], used: float) -> None:
        limits = self._job.limits
        self._ended += 1
        self._first = record["due"] if self._first is None else min(self._first, record["due"])
        is_warm = self._ended > limits.warmup_requests and record["due"] >= self._first + limits.warmup_seconds
        if self._since is None and is_warm:
            self._since = record["due"]
            self._used = (time.monotonic(), used)
        if self._since is None:
            return
        self._counted += 1
        self._failed += record["error"] is not None
        if record["error"] is None:
            self._recent.append((record["end"], record["end"] - record["due"]))

    def _progress(self) -> Progress:
        now = time.time()
        while self._recent and self._recent[0][0] < now - SHOWN_SECONDS:
            self._recent.popleft()
        took = [seconds for _, seconds in self._recent]
        p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
        return Progress(
            phase="counted" if self._is_warm(now) else "warmup",
            elapsed=0.0 if self._first is None else max(0.0, now - self._first),
            sent=self._counted + self._callers,
            succeeded=self._counted - self._failed,
            failed=self._failed,
            in_flight=self._callers,
            throughput=len(took) / SHOWN_SECONDS,
            p50=None if p50 is None else p50 * 1e3,
            p99=None if p99 is None else p99 * 1e3,
        )


def _follow(
    running: Running, course: Course, watch: Callable[[Progress], None] | None, stop: threading.Event | None
) -> bool:
    """Until the run is over; whether it was ended early. Raises LoadFailed where locust ends by itself."""
    while True:
        alive = running.alive
        progress = course.look(running.processor_seconds)
        if watch is not None:
            watch(progress)
        if course.is_over:
            return False
        if not alive:
            reason = failure_reason(running.words())
            kind = UsageError if "unrecognized arguments" in reason else LoadFailed
            raise kind(f"locust ended by itself: {reason}", "`locust --help` shows its options.")
        if stop is not None and stop.is_set():
            return True
        if course.is_stuck:
            return False
        time.sleep(POLL_SECONDS)


def failure_reason(words: str) -> str:
    """The line of locust's output that says what went wrong."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if "/ERROR/" in line or "error:" in line]
    return (errors or lines or ["it said nothing"])[-1].partition(": ")[2] or (errors or lines or [""])[-1]
