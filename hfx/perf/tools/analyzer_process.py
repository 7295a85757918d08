"""perf_analyzer's process: started, followed by the server's own counts, interrupted in time, and never left behind.

Owns when a run is over. It must not know what its record says.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.builtin import Progress
from hfx.perf.builtin.driver import Phase
from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.server.statistics import Counts, Statistics
from hfx.perf.tools.install import Program
from hfx.perf.tools.requested import Ended
from hfx.perf.tools.running import Running

POLL_SECONDS = 0.1
SHOWN_SECONDS = 1.0  # that a Progress is about
START_SECONDS = 30.0  # until its first request
AFTER_SECONDS = 0.3  # a little more than ordered is sent, and left out of the figures
FAILED = "had error:"
TAIL_BYTES = 200
END = re.compile(rb'\],"version":"[^"]*","service_kind":"[^"]*","endpoint":"[^"]*"\}\s*$')


@dataclass(frozen=True)
class Job:
    """One run: the program and its arguments, what it is to do, and where its record will be."""

    program: Program
    arguments: tuple[str, ...]
    url: str
    model: str
    plan: Plan
    limits: Limits
    times: Sequence[float]
    record: Path


class _Silence(LoadFailed):
    """It recorded nothing and gave no reason."""


def carried_out(job: Job, watch: Callable[[Progress], None] | None, stop: threading.Event | None) -> Ended:
    """Run it to its end, or until STOP is set; its record is written then. Raises LoadFailed with what it says.

    Now and then it hangs or ends without a word, and does what it should when it is asked again: so it is, once.
    """
    try:
        return _once(job, watch, stop)
    except _Silence:
        if stop is not None and stop.is_set():
            raise
        return _once(job, watch, stop)


def _once(job: Job, watch: Callable[[Progress], None] | None, stop: threading.Event | None) -> Ended:
    output = job.record.with_name("output.txt")
    with Statistics(job.url) as statistics:
        course = Course(job, lambda: statistics.look().get(job.model, Counts()).requests)
        with Running((str(job.program.path), *job.arguments), output, job.program.environment) as running:
            interrupted = _follow(running, course, watch, stop)
            finished = not running.alive
            running.interrupt()
            if not _wait_for_record(running, job):
                raise _failure(running.words(), interrupted)
    stable = None if job.limits.stable is None else finished
    return Ended(course.cores, interrupted=interrupted, stable=stable)


class Course:
    """How far a run has come, by the server's count of answers."""

    def __init__(self, job: Job, answered: Callable[[], int]) -> None:
        self._job = job
        self._answered = answered
        self._before = answered()
        self._started = time.monotonic()
        self._begin: float | None = None  # of the requests
        self._counted: tuple[float, int] | None = None  # when, and after how many answers the warm-up was over
        self._recent: deque[tuple[float, int]] = deque()
        self._moved = self._started
        self._used = (self._started, 0.0)  # when, and the processor seconds of the program until then
        self.cores = 0.0  # that it kept busy since the warm-up
        self.done = 0

    def look(self, used: float) -> Progress:
        """What is known now; USED are the processor seconds of the program."""
        now, done = time.monotonic(), self._answered() - self._before
        if done != self.done:
            self._moved = now
            self._begin = self._begin or now
        self.done = done
        self._recent.append((now, done))
        while self._recent[0][0] < now - SHOWN_SECONDS:
            self._recent.popleft()
        if self._counted is None and self._is_warm(now):
            self._counted = (now, done)
            self._used = (now, used)
        if used and now > self._used[0]:
            self.cores = (used - self._used[1]) / (now - self._used[0])
        return self._progress(now)

    @property
    def is_over(self) -> bool:
        """Whether all has been answered that was ordered."""
        limits, now = self._job.limits, time.monotonic()
        if self._job.times:
            return self.done >= len(self._job.times)
        if self._counted is None:
            return False
        since, before = self._counted
        most = limits.most_seconds
        if limits.requests is not None and self.done - before >= limits.requests + _callers(self._job.plan):
            return True
        return most is not None and now - since >= most + AFTER_SECONDS

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has come for longer than any request may take."""
        patience = self._job.limits.timeout + (START_SECONDS if self._begin is None else self._longest_pause())
        return time.monotonic() - self._moved > patience

    def _is_warm(self, now: float) -> bool:
        limits = self._job.limits
        if self._begin is None or self.done < limits.warmup_requests:
            return False
        return now - self._begin >= limits.warmup_seconds

    @property
    def _phase(self) -> Phase:
        limits = self._job.limits
        has_warm_up = limits.warmup_requests or limits.warmup_seconds
        return "warmup" if has_warm_up and self._counted is None else "counted"

    def _longest_pause(self) -> float:
        times = self._job.times
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def _progress(self, now: float) -> Progress:
        before = self._counted[1] if self._counted else 0
        (first, least), (last, most) = self._recent[0], self._recent[-1]
        rate = (most - least) / (last - first) if last > first else 0.0
        callers = _callers(self._job.plan)
        counted = self.done - before
        elapsed = now - (self._begin or now)
        return Progress(self._phase, elapsed, counted + callers, counted, 0, callers, rate)


def _follow(
    running: Running, course: Course, watch: Callable[[Progress], None] | None, stop: threading.Event | None
) -> bool:
    """Until the run is over, however it ends; whether it was ended early."""
    while running.alive:
        progress = course.look(running.processor_seconds)
        if watch is not None:
            watch(progress)
        if stop is not None and stop.is_set():
            return True
        if course.is_over or course.is_stuck or FAILED in running.words():
            break
        time.sleep(POLL_SECONDS)
    return False


def _wait_for_record(running: Running, job: Job) -> bool:
    """Whether it has written its record; it may still be alive then, and never end."""
    end = time.monotonic() + job.limits.timeout
    while running.alive and time.monotonic() < end and not _is_whole(job.record):
        time.sleep(POLL_SECONDS)
    return _is_whole(job.record)


def _is_whole(record: Path) -> bool:
    """Whether the record was written to its end, `…"endpoint":""}`."""
    try:
        with record.open("rb") as file:
            file.seek(-min(TAIL_BYTES, record.stat().st_size), os.SEEK_END)
            return bool(END.search(file.read()))
    except OSError:
        return False


def _callers(plan: Plan) -> int:
    return plan.callers if isinstance(plan, Closed) else 0


def _failure(words: str, interrupted: bool) -> HfxError:
    """What perf_analyzer's output says of its failure, in a line."""
    unknown = next((line for line in words.splitlines() if "unrecognized option" in line), "")
    if unknown:
        return UsageError(
            f"perf_analyzer has no such flag:{unknown.rpartition(':')[2]}.",
            "`perf_analyzer --help` lists them; `hfx perf tools` says where it is.",
        )
    if interrupted:
        return LoadFailed("perf_analyzer was ended before it had recorded anything.", "Give it more time.")
    reason = failure_reason(words)
    if not reason:
        return _Silence("perf_analyzer got no answer and said nothing.", "Try again, or use --tool builtin.")
    return LoadFailed(
        f"perf_analyzer ended with the first error: {reason}",
        "It can't go on after one; --tool builtin counts them and goes on.",
    )


def failure_reason(words: str) -> str:
    """The line of perf_analyzer's output that says what went wrong, without its own lead; empty where there is none."""
    lines = [line.strip() for line in words.splitlines()]
    for lead in (FAILED, "error:", "Error:", "Failed"):
        found = [line.partition(lead)[2].strip() or line for line in lines if lead in line]
        if found:
            return found[-1]
    return ""
