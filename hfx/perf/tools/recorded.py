"""Requests as another tool recorded them: which of them count, and when those of an open load are due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from hfx import names
from hfx.errors import LoadFailed, UsageError
from hfx.perf.load import Limits, Open
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord, timestamp

WARM_SECONDS = 0.25  # between the requests of a warm-up that come one after the other


def check_arguments(words: Sequence[str], own: Collection[str]) -> None:
    """Raise UsageError for a flag of a tool that is among its `own`: hfx sets them itself."""
    for word in words:
        if word.partition("=")[0] in own:
            raise UsageError(f"{word} is set by hfx.", "Use the options of hfx perf run instead.")


def log_of(
    recorded: Sequence[RequestRecord], limits: Limits, log: RequestLog, read: Callable[[Any], Piece]
) -> RequestLog:
    """`log` with what counts of `recorded`. Raises LoadFailed where nothing does."""
    counts = counted(recorded, limits, log.stable is not None)
    if not recorded:
        raise LoadFailed("The load generator got no answer.", "Try one request alone: hfx infer NAME TEXT")
    if not counts:
        raise LoadFailed(
            f"None of {len(recorded)} requests came after the warm-up.", "Give the run more requests or time."
        )
    for number, each in enumerate(counts):
        log.add(replace(each, number=number), read if log.counts else None)
    log.began = timestamp(counts[0].due)
    return log


def counted(recorded: Sequence[RequestRecord], limits: Limits, until_stable: bool = False) -> list[RequestRecord]:
    """Those that count, in the order in which they were due; all after the warm-up where the tool chose the end."""
    ordered = sorted(recorded, key=lambda each: each.due)
    warm = ordered[limits.warmup_requests :]
    if not warm:
        return []
    begin = ordered[0].due + limits.warmup_seconds
    rows = [each for each in warm if each.due >= begin]
    if not rows or until_stable:
        return rows
    if limits.seconds is not None:
        rows = [each for each in rows if each.due - rows[0].due < limits.seconds]
    return rows[: limits.requests]


def piece_of(outputs: dict[str, Any]) -> Piece:
    """From the outputs of an answer by name, as plain values."""
    return Piece(
        read=int(outputs.get(names.INPUT_TOKENS) or 0),
        written=int(outputs.get(names.OUTPUT_TOKENS) or 0),
        truncated=int(outputs.get(names.TRUNCATED_TOKENS) or 0),
        finish_reason=str(outputs.get(names.FINISH_REASON) or ""),
    )


def due_times(plan: Open, limits: Limits) -> tuple[float, ...]:
    """When each request of an open load is due, those of the warm-up first; seconds from the start."""
    warm = limits.warmup_requests
    if plan.at_once:  # one after the other before all the others
        start = warm * WARM_SECONDS
        return (*(n * WARM_SECONDS for n in range(warm)), *(start + at for at in plan.times(limits.requests)))
    times: list[float] = []
    first: int | None = None
    for at in plan.times():
        if first is None and len(times) >= warm and at >= limits.warmup_seconds:
            first = len(times)
        if first is not None:
            seconds = at - (times[first:] or [at])[0]
            if len(times) - first == limits.requests or seconds >= (limits.most_seconds or math.inf):
                break
        times.append(at)
    return tuple(times)


def callers_of(spans: Sequence[tuple[float, float]], callers: int) -> list[int]:
    """Which of `callers` sent each of (sent, end): the one that has been free for longest."""
    free: list[tuple[float, int]] = []
    found = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        sent, end = spans[index]
        is_new = len(free) < callers and not (free and free[0][0] <= sent)
        found[index] = len(free) if is_new else heapq.heappop(free)[1]
        heapq.heappush(free, (end, found[index]))
    return found
