"""Requests as a tool recorded them, made into the figures that the built-in generator gives.

What counts is decided here for every tool alike: the warm-up is left out, and no more counts than was ordered. It must
not know which tool sent them.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hfx import names
from hfx.errors import LoadFailed, ServerError
from hfx.perf.builtin import Generated
from hfx.perf.builtin.driver import Outcome
from hfx.perf.builtin.figures import figures
from hfx.perf.builtin.messages import Piece
from hfx.perf.builtin.records import Failure, Record, Recorder
from hfx.perf.builtin.strain import Strain
from hfx.perf.load import Limits, Open, Plan, Slo


@dataclass(frozen=True)
class Asked:
    """A request that has ended; seconds since the epoch. `due`: when it was to be sent; `times` are its messages'."""

    due: float
    sent: float
    end: float
    times: tuple[float, ...] = ()
    pieces: tuple[Piece, ...] = ()
    error: Failure | None = None
    caller: int = 0


@dataclass(frozen=True)
class Ended:
    """How a tool's run ended: cores that the tool itself kept busy, and the words that belong beside its figures.

    `in_one_thread`: a whole core is all that it can use.
    """

    cores: float
    in_one_thread: bool = False
    interrupted: bool = False
    stable: bool | None = None
    notes: tuple[str, ...] = ()


class _Said(bytes):
    """A message that was read already, for a recorder of bytes."""

    piece: Piece


def piece_of(outputs: dict[str, Any]) -> Piece:
    """From the outputs of an answer by name, as plain values."""
    return Piece(
        read=int(outputs.get(names.INPUT_TOKENS) or 0),
        written=int(outputs.get(names.OUTPUT_TOKENS) or 0),
        truncated=int(outputs.get(names.TRUNCATED_TOKENS) or 0),
        finish_reason=str(outputs.get(names.FINISH_REASON) or ""),
    )


def generated(
    asked: Sequence[Asked], plan: Plan, limits: Limits, slo: Slo | None, stream: bool, counts: bool, ended: Ended
) -> Generated:
    """The figures of what counts of ASKED. COUNTS: answers told their tokens. Raises LoadFailed where nothing does."""
    rows = counted(asked, limits, ended.stable is not None)
    if not rows:
        raise LoadFailed(
            f"None of {len(asked)} requests came after the warm-up.", "Give the run more requests or time."
        )
    recorder = Recorder(_read if counts else None, _unexplained, stream)
    for number, each in enumerate(rows):
        recorder.add(_record(number, each))
    began = datetime.fromtimestamp(rows[0].due, UTC).isoformat(timespec="milliseconds")
    outcome = Outcome(
        tape=recorder.finish(),
        strain=Strain(ended.cores if ended.in_one_thread else 0.0, array("d")),
        began=began,
        since=rows[0].due,
        stable=ended.stable,
        interrupted=ended.interrupted,
        notes=ended.notes,
    )
    made = figures(outcome, plan, slo, counts)
    client = replace(made.client, cores=ended.cores) if made.client else None
    return replace(made, client=client)


def counted(asked: Sequence[Asked], limits: Limits, until_stable: bool = False) -> list[Asked]:
    """Those that count, in the order in which they were due; all after the warm-up where the tool chose the end."""
    ordered = sorted(asked, key=lambda each: each.due)
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


def due_times(plan: Open, limits: Limits) -> tuple[float, ...]:
    """When each request of an open load is due, those of the warm-up first; seconds from the start."""
    warm = limits.warmup_requests
    if plan.at_once:  # one after the other before all the others
        start = warm * WARM_SECONDS
        return (*(n * WARM_SECONDS for n in range(warm)), *(start + at for at in plan.times(limits.requests, None)))
    found: list[float] = []
    first: int | None = None
    for at in plan.times(None, None):
        if first is None and len(found) >= warm and at >= limits.warmup_seconds:
            first = len(found)
        if first is not None and _is_past(limits, len(found) - first, at - (found[first:] or [at])[0]):
            break
        found.append(at)
    return tuple(found)


WARM_SECONDS = 0.25  # between the requests of a warm-up that come one after the other


def _is_past(limits: Limits, count: int, seconds: float) -> bool:
    most = limits.most_seconds
    return count == limits.requests or (most is not None and seconds >= most)


def callers_of(spans: Sequence[tuple[float, float]], callers: int) -> list[int]:
    """Which of CALLERS sent each of (sent, end): whoever has been free for longest."""
    free: list[tuple[float, int]] = []
    found = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        sent, end = spans[index]
        is_new = len(free) < callers and not (free and free[0][0] <= sent)
        found[index] = len(free) if is_new else heapq.heappop(free)[1]
        heapq.heappush(free, (end, found[index]))
    return found


def _record(number: int, asked: Asked) -> Record:
    record = Record(number, asked.due, asked.caller)
    record.sent, record.end, record.error = asked.sent, asked.end, asked.error
    record.times = list(asked.times)
    for piece in asked.pieces:
        said = _Said()
        said.piece = piece
        record.messages.append(said)
    return record


def _read(message: bytes) -> Piece:
    assert isinstance(message, _Said)
    return message.piece


def _unexplained(words: str) -> Failure:
    return ServerError.__name__, words
