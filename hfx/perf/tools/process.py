"""A tool's process: started, followed by the answers that it has got, interrupted at the end, and never left behind."""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Self

import psutil

from hfx.perf.load import Limits, Open, Plan
from hfx.perf.loadgen.log import Progress, Watch
from hfx.triton.process import ends_with_parent

POLL_SECONDS = 0.1
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


@dataclass(frozen=True)
class Look:
    """At a moment (`at`, time.monotonic): how many answers there are, and the tool's processor seconds."""

    at: float
    answers: int
    used: float


def follow(
    process: ToolProcess,
    answered: Callable[[], int],
    plan: Plan,
    limits: Limits,
    watch: Watch,
    stop: Event,
    times: Sequence[float] = (),
    fatal: str = "",
) -> float:
    """Return when all is answered, `stop` is set, the process ends or prints `fatal`, or no answer comes any more.

    `times` are those of an open plan. The result: the cores that the process kept busy from the first answer on.
    """
    pause = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    moved, cores = Look(time.monotonic(), 0, 0.0), 0.0
    first: Look | None = None
    warm: Look | None = None  # the warm-up's end
    while process.alive and not stop.is_set() and not (fatal and fatal in process.text):
        now = Look(time.monotonic(), answered(), process.processor_seconds)
        if now.answers > moved.answers:
            moved, first = now, first or now
        if first and now.at > first.at and now.used:
            cores = (now.used - first.used) / (now.at - first.at)
        if first and now.at - first.at >= limits.warmup_seconds and now.answers >= limits.warmup_requests:
            warm = warm or now
        watch(_progress(first or now, warm, now, plan, limits))
        patience = limits.timeout + (pause if first else START_SECONDS)
        if _is_over(warm, now, plan, limits, times) or now.at - moved.at > patience:
            break
        time.sleep(POLL_SECONDS)
    return cores


def _is_over(warm: Look | None, now: Look, plan: Plan, limits: Limits, times: Sequence[float]) -> bool:
    """Whether all has been answered that was ordered."""
    if isinstance(plan, Open):
        return now.answers >= len(times)
    if warm is None:
        return False
    requests, seconds = limits.requests or math.inf, limits.most_seconds or math.inf
    return now.answers - warm.answers >= requests + plan.callers or now.at - warm.at >= seconds + AFTER_SECONDS


def _progress(first: Look, warm: Look | None, now: Look, plan: Plan, limits: Limits) -> Progress:
    seconds, counted = now.at - first.at, now.answers - (warm.answers if warm else 0)
    callers = 0 if isinstance(plan, Open) else plan.callers
    return Progress(
        phase="counted" if warm or not limits.warms_up else "warmup",
        elapsed=seconds,
        sent=counted + callers,
        succeeded=counted,
        failed=0,
        in_flight=callers,
        throughput=now.answers / seconds if seconds else 0.0,
    )
