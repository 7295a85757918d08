"""What other tools share: a process that is started, followed and ended, and the requests that it has recorded."""

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
from hfx.perf.loadgen.log import LoadRun, Piece, Progress, RequestLog, RequestRecord, timestamp
from hfx.process import end, ends_with_parent, spawn

POLL_SECONDS = 0.1
START_SECONDS = 60.0  # until the first answer
AFTER_SECONDS = 0.3  # a little more is sent than counts


class ToolProcess:
    """`command`, its output in the file `output`; a context manager that kills it."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = output
        output.write_bytes(b"")
        # A killed hfx must not leave a load behind. The input stays silent: locust can't wait for /dev/null.
        self._process = spawn(ends_with_parent(command), output, stdin=subprocess.PIPE, env=environment)

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
        with self._process:
            end(self._process, grace=0)


@dataclass(frozen=True)
class Look:
    """At a moment (`at`, time.monotonic): how many answers there are, and the tool's processor seconds."""

    at: float
    answers: int
    used: float


def follow(
    process: ToolProcess, answered: Callable[[], int], run: LoadRun, times: Sequence[float], fatal: str = ""
) -> float:
    """Return when all is answered, `run` is stopped, the process ends or prints `fatal`, or no answer comes any more.

    `times` are those of an open plan. The result: the cores that the process kept busy from the first answer on.
    """
    plan, limits = run.plan, run.spec.limits
    pause = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    moved, cores = Look(time.monotonic(), 0, 0.0), 0.0
    first: Look | None = None
    warm: Look | None = None  # the warm-up's end
    while process.alive and not run.stop.is_set() and not (fatal and fatal in process.text):
        now = Look(time.monotonic(), answered(), process.processor_seconds)
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


def _is_over(warm: Look | None, now: Look, plan: Plan, limits: LoadLimits, times: Sequence[float]) -> bool:
    """Whether all has been answered that was ordered."""
    if isinstance(plan, Open):
        return now.answers >= len(times)
    if warm is None:
        return False
    requests, seconds = limits.requests or math.inf, limits.most_seconds or math.inf
    return now.answers - warm.answers >= requests + plan.callers or now.at - warm.at >= seconds + AFTER_SECONDS


def _progress(first: Look, warm: Look | None, now: Look, plan: Plan, limits: LoadLimits) -> Progress:
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


WARM_SECONDS = 0.25  # between the requests of a warm-up that come one after the other
ERROR = re.compile(r"[Ee]rror:|/ERROR/[^:]*:|(?=unrecognized)")  # what precedes a reason


def ordered(run: LoadRun, own: Collection[str]) -> tuple[Sequence[Request], tuple[float, ...]]:
    """The requests of `run` with what the model is always sent, and when each is due where the plan is open.

    Raises UsageError for what the model does not take, and for a flag that is among the tool's `own`: hfx sets them.
    """
    spec = run.spec
    for word in spec.arguments:
        if word.partition("=")[0] in own:
            raise UsageError(f"{word} is set by hfx.", "Use the options of hfx perf run instead.")
    requests = completed(spec.requests, run.model, bool(spec.stream), spec.limits.timeout)
    return requests, () if isinstance(run.plan, Closed) else due_times(run.plan, spec.limits)


def failure(tool: str, text: str) -> HfxError:
    """The error of a tool that ended before its time, by the last reason in the `text` that it printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line[match.end() :].strip() or line for line in lines if (match := ERROR.search(line))]
    reason = ["It printed nothing.", *lines, *reasons][-1]
    if "unrecognized" in reason:
        return UsageError(f"{tool}: {reason}.", f"`{tool} --help` lists its flags; `hfx perf tools` says where it is.")
    return LoadFailed(f"{tool} ended by itself: {reason}", "--tool builtin counts requests that fail, and goes on.")


def log_of(recorded: Sequence[RequestRecord], run: LoadRun, read: Callable[[Any], Piece], **known: Any) -> RequestLog:
    """The log of what counts of `recorded`: all after the warm-up where the tool chose the end.

    `known` are fields of the log. Raises LoadFailed where nothing counts.
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
    """`times`, which rise from 0, of the warm-up and of what counts; no more of them are read."""
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
    """When each request of an open load is due, those of the warm-up first; seconds from the start."""
    if plan.at_once:  # after the warm-up, one by one
        start = limits.warmup_requests * WARM_SECONDS
        warm = [number * WARM_SECONDS for number in range(limits.warmup_requests)]
        return (*warm, *(start + at for at in plan.times(limits.requests)))
    warm, counts = split(plan.times(), limits)
    return (*warm, *counts)


def callers_of(spans: Iterable[tuple[float, float]], callers: int) -> list[int]:
    """Which of `callers` sent each of (sent, end), in the order of `sent`: the one that has been free for longest."""
    free = [(-math.inf, caller) for caller in range(callers)]
    senders = []
    for _, ended in spans:
        senders.append(free[0][1])
        heapq.heapreplace(free, (ended, senders[-1]))
    return senders
