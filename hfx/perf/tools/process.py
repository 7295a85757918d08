"""Shared by the adapters of other tools: running their process, and making a log of the requests that they recorded."""

from __future__ import annotations

import heapq
import math
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil

from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Request
from hfx.perf.loadgen.generate import completed, counts_tokens
from hfx.perf.loadgen.log import AnswerPart, LoadRun, Progress, RequestLog, RequestRecord, timestamp
from hfx.process import end, ends_with_parent, spawn

POLL_SECONDS = 0.1
START_SECONDS = 60.0  # the longest wait for the first answer
AFTER_SECONDS = 0.3  # time by which the tool runs longer than the time that counts


class ToolProcess:
    """A running tool, whose output goes to the file `output`. As a context manager, it kills the tool at the end."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        output.write_bytes(b"")
        # The tool dies with hfx. Its input is an idle pipe, because locust does not work with /dev/null.
        self._process = spawn(ends_with_parent(command), output, stdin=subprocess.PIPE, env=environment)

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def processor_seconds(self) -> float:
        """CPU seconds of all its threads; 0 after its end."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    @property
    def text(self) -> str:
        """The output of the process so far."""
        return self._output.read_bytes().decode(errors="replace")

    def interrupt(self, seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Send SIGINT, and wait at most `seconds` until the process ends or `is_done()` is true."""
        if self.alive:
            self._process.send_signal(signal.SIGINT)
        end = time.monotonic() + seconds
        while self.alive and time.monotonic() < end and not is_done():
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            end(self._process, grace=0)


@dataclass(frozen=True)
class Sample:
    """A sample at `at` (time.monotonic): the number of answers, and the tool's CPU seconds."""

    at: float
    answers: int
    used: float


def follow(
    process: ToolProcess, answered: Callable[[], int], run: LoadRun, times: Sequence[float], fatal: str = ""
) -> float:
    """Wait until all requests are answered, and return the number of cores that the process kept busy.

    `answered` returns the number of answers; `times` are the due times of an open plan. Busy cores count from the first
    answer on. Also returns when `run` is stopped, the process ends or prints `fatal`, or answers stop coming.
    """
    plan, limits = run.plan, run.spec.limits
    pause = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    moved, cores = Sample(time.monotonic(), 0, 0.0), 0.0
    first: Sample | None = None
    warm: Sample | None = None  # the sample at the end of the warm-up
    while process.alive and not run.stop.is_set() and not (fatal and fatal in process.text):
        now = Sample(time.monotonic(), answered(), process.processor_seconds)
        if now.answers > moved.answers:
            moved, first = now, first or now
        if first and now.at > first.at and now.used:
            cores = (now.used - first.used) / (now.at - first.at)
        if first and now.at - first.at >= limits.warmup_seconds and now.answers >= limits.warmup_requests:
            warm = warm or now
        run.watch(_progress(first or now, warm, now, plan, limits))
        patience = limits.timeout + (pause if first else START_SECONDS)
        if _is_over(warm, now, plan, limits, times) or now.at - moved.at > patience:
            break
        time.sleep(POLL_SECONDS)
    return cores


def _is_over(warm: Sample | None, now: Sample, plan: Plan, limits: LoadLimits, times: Sequence[float]) -> bool:
    """Return whether all requests of the plan are answered."""
    if isinstance(plan, Open):
        return now.answers >= len(times)
    if warm is None:
        return False
    requests, seconds = limits.requests or math.inf, limits.most_seconds or math.inf
    return now.answers - warm.answers >= requests + plan.callers or now.at - warm.at >= seconds + AFTER_SECONDS


def _progress(first: Sample, warm: Sample | None, now: Sample, plan: Plan, limits: LoadLimits) -> Progress:
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


WARM_SECONDS = 0.25  # interval between the requests of a warm-up that is sent one by one
ERROR = re.compile(r"[Ee]rror:|/ERROR/[^:]*:|(?=unrecognized)")  # precedes the reason in a line of output


def ordered(run: LoadRun, own: Collection[str]) -> tuple[Sequence[Request], tuple[float, ...]]:
    """Return the completed requests of `run` (see `completed`), and the due times of an open plan (closed: none).

    Raises UsageError for requests that the model does not accept, and for a flag in `own`, which hfx sets itself.
    """
    spec = run.spec
    for word in spec.arguments:
        if word.partition("=")[0] in own:
            raise UsageError(f"{word} is set by hfx.", "Use the options of hfx perf run instead.")
    requests = completed(spec.requests, run.model, bool(spec.stream), spec.limits.timeout)
    return requests, () if isinstance(run.plan, Closed) else due_times(run.plan, spec.limits)


def failure(tool: str, text: str) -> HfxError:
    """Return the error for a tool that ended too early, with the last reason in its output `text`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line[match.end() :].strip() or line for line in lines if (match := ERROR.search(line))]
    reason = ["It printed nothing.", *lines, *reasons][-1]
    if "unrecognized" in reason:
        return UsageError(f"{tool}: {reason}.", f"`{tool} --help` lists its flags; `hfx perf tools` says where it is.")
    return LoadFailed(f"{tool} ended by itself: {reason}", "--tool builtin counts requests that fail, and goes on.")


def log_of(
    recorded: Sequence[RequestRecord], run: LoadRun, read: Callable[[Any], AnswerPart], **known: Any
) -> RequestLog:
    """Return the log of those `recorded` requests that count.

    If the tool decided when the load was stable, all requests after the warm-up count. `known` are further fields of
    the log. Raises LoadFailed if no request counts.
    """
    limits = run.spec.limits
    log = RequestLog(bool(run.spec.stream), counts_tokens(run.model), interrupted=run.stop.is_set(), **known)
    if not recorded:
        raise LoadFailed("The load generator got no answer.", "Try one request alone: hfx infer NAME TEXT")
    ordered = sorted(recorded, key=lambda each: each.due)
    if log.stable is not None:
        limits = replace(limits, requests=None, seconds=None, stable=None)
    warm, counts = split((each.due - ordered[0].due for each in ordered), limits)
    if not counts:
        raise LoadFailed(
            f"None of {len(recorded)} requests came after the warm-up.", "Give the run more requests or time."
        )
    for number, each in enumerate(ordered[len(warm) : len(warm) + len(counts)]):
        log.add(replace(each, number=number), read if log.counts else None)
    log.began = timestamp(ordered[len(warm)].due)
    return log


def split(times: Iterable[float], limits: LoadLimits) -> tuple[list[float], list[float]]:
    """Split ascending `times` (from 0) into times of the warm-up and times that count. Later times are not read."""
    warm: list[float] = []
    counts: list[float] = []
    for at in times:
        if not counts and (len(warm) < limits.warmup_requests or at < limits.warmup_seconds):
            warm.append(at)
        elif len(counts) == limits.requests or (counts and at - counts[0] >= (limits.most_seconds or math.inf)):
            break
        else:
            counts.append(at)
    return warm, counts


def due_times(plan: Open, limits: LoadLimits) -> tuple[float, ...]:
    """Return when each request of an open plan is due, in seconds from the start, beginning with the warm-up."""
    if plan.at_once:  # the burst follows a warm-up that is sent one by one
        start = limits.warmup_requests * WARM_SECONDS
        warm = [number * WARM_SECONDS for number in range(limits.warmup_requests)]
        return (*warm, *(start + at for at in plan.times(limits.requests)))
    warm, counts = split(plan.times(), limits)
    return (*warm, *counts)


def callers_of(spans: Iterable[tuple[float, float]], callers: int) -> list[int]:
    """Assign a caller to each (sent, end) in the order of `sent`: the caller that has been idle for longest."""
    free = [(-math.inf, caller) for caller in range(callers)]
    senders = []
    for _, ended in spans:
        senders.append(free[0][1])
        heapq.heapreplace(free, (ended, senders[-1]))
    return senders
