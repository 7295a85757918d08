"""A tool's process: started, followed by the answers that it has got, interrupted at the end, and never left behind."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Self

import psutil

from hfx.perf.load import Closed, Limits, Plan
from hfx.perf.loadgen.log import Progress, Watch
from hfx.triton.process import ends_with_parent

POLL_SECONDS = 0.1
SHOWN_SECONDS = 1.0  # that a Progress is about
START_SECONDS = 60.0  # until the first answer
AFTER_SECONDS = 0.3  # a little more is sent than counts


class ToolProcess:
    """`command`, its output in the file `output`; a context manager that kills it."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                ends_with_parent(command, signal.SIGKILL),  # a killed hfx must not leave a load behind
                stdin=subprocess.PIPE,  # which stays silent; locust can't wait for /dev/null
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,  # a terminal's Ctrl-C is for hfx, which passes it on
            )

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def processor_seconds(self) -> float:
        """Of all its threads; 0 when it has ended."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_bytes().decode(errors="replace")

    def interrupt(self, seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Send it SIGINT, and return when it has ended or `is_done`, or after so many seconds."""
        if self.alive:
            self._process.send_signal(signal.SIGINT)
        end = time.monotonic() + seconds
        while self.alive and time.monotonic() < end and not is_done():
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


class Course:
    """How far a tool's run has come: `cores` that it kept busy after the warm-up, whether Ctrl-C or the tool ended it.

    `answered` counts its answers so far; `times` are those of an open plan.
    """

    def __init__(
        self, process: ToolProcess, answered: Callable[[], int], plan: Plan, limits: Limits, times: Sequence[float] = ()
    ) -> None:
        self._process, self._answered, self._limits, self._times = process, answered, limits, times
        self._callers = plan.callers if isinstance(plan, Closed) else 0
        self._first: float | None = None  # answer
        self._moved = time.monotonic()
        self._warm: tuple[float, int, float] | None = None  # the warm-up's end: when, answers, processor seconds
        self._recent: deque[tuple[float, int]] = deque()
        self._done = 0
        self.cores = 0.0
        self.interrupted = self.ended = False

    def follow(self, watch: Watch, stop: Event, fatal: str = "") -> None:
        """Until all is answered, `stop` is set, the process ends or prints `fatal`, or no answer comes any more."""
        while self._process.alive:
            watch(self._look(time.monotonic()))
            self.interrupted = stop.is_set()
            if self.interrupted or self._is_over or self._is_stuck or (fatal and fatal in self._process.text):
                return
            time.sleep(POLL_SECONDS)
        self.ended = True

    def _look(self, now: float) -> Progress:
        limits, done, used = self._limits, self._answered(), self._process.processor_seconds
        if done != self._done:
            self._done, self._moved, self._first = done, now, self._first or now
        self._recent.append((now, done))
        while self._recent[0][0] < now - SHOWN_SECONDS:
            self._recent.popleft()
        is_warm = self._first is not None and now - self._first >= limits.warmup_seconds
        if self._warm is None and is_warm and done >= limits.warmup_requests:
            self._warm = (now, done, used)
        if self._warm is not None and used and now > self._warm[0]:
            self.cores = (used - self._warm[2]) / (now - self._warm[0])
        return self._progress(now)

    @property
    def _is_over(self) -> bool:
        """Whether all has been answered that was ordered."""
        if self._times or self._warm is None:
            return bool(self._times) and self._done >= len(self._times)
        since, before, _ = self._warm
        requests, seconds = self._limits.requests, self._limits.most_seconds
        if requests is not None and self._done - before >= requests + self._callers:
            return True
        return seconds is not None and time.monotonic() - since >= seconds + AFTER_SECONDS

    @property
    def _is_stuck(self) -> bool:
        """Whether nothing has come for longer than any request may take."""
        pause = max((later - earlier for earlier, later in itertools.pairwise(self._times)), default=0.0)
        patience = self._limits.timeout + (START_SECONDS if self._first is None else pause)
        return time.monotonic() - self._moved > patience

    def _progress(self, now: float) -> Progress:
        (first, least), (last, most) = self._recent[0], self._recent[-1]
        counted = self._done - (self._warm[1] if self._warm else 0)
        return Progress(
            phase="warmup" if self._limits.warms_up and self._warm is None else "counted",
            elapsed=now - (self._first or now),
            sent=counted + self._callers,
            succeeded=counted,
            failed=0,
            in_flight=self._callers,
            throughput=(most - least) / (last - first) if last > first else 0.0,
        )
