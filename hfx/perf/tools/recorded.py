"""Requests as another tool recorded them: which of them count, and when those of an open load are due."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hfx.errors import HfxError, LoadFailed, UsageError
from hfx.perf.load import Limits, Open
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord, timestamp

WARM_SECONDS = 0.25  # between the requests of a warm-up that come one after the other
ERROR = re.compile(r"[Ee]rror:|/ERROR/[^:]*:|(?=unrecognized)")  # what precedes a reason


def check_arguments(words: Sequence[str], own: Collection[str]) -> None:
    """Raise UsageError for a flag of a tool that is among its `own`: hfx sets them itself."""
    for word in words:
        if word.partition("=")[0] in own:
            raise UsageError(f"{word} is set by hfx.", "Use the options of hfx perf run instead.")


def failure(tool: str, text: str) -> HfxError:
    """The error of a tool that ended before its time, by the last reason in the `text` that it printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line[match.end() :].strip() or line for line in lines if (match := ERROR.search(line))]
    reason = ["It printed nothing.", *lines, *reasons][-1]
    if "unrecognized" in reason:
        return UsageError(f"{tool}: {reason}.", f"`{tool} --help` lists its flags; `hfx perf tools` says where it is.")
    return LoadFailed(f"{tool} ended by itself: {reason}", "--tool builtin counts requests that fail, and goes on.")


def log_of(
    recorded: Sequence[RequestRecord], limits: Limits, log: RequestLog, read: Callable[[Any], Piece]
) -> RequestLog:
    """`log` with what counts of `recorded`: all after the warm-up where the tool chose the end.

    Raises LoadFailed where nothing counts.
    """
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


def split(times: Iterable[float], limits: Limits) -> tuple[list[float], list[float]]:
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


def due_times(plan: Open, limits: Limits) -> tuple[float, ...]:
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
    for _, end in spans:
        senders.append(free[0][1])
        heapq.heapreplace(free, (end, senders[-1]))
    return senders
