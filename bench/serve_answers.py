"""What came back of a load, and the figures of it. Knows neither doors nor protocols.

A piece is what one message brought; the pause before it is what a reader sees, so a message with several tokens counts
once. Times to the first token and pauses are taken in the steady part of a load, after each caller's first request.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Record:
    """One request as it went: seconds of time.perf_counter, and messages as they came, unread."""

    due: float = 0.0  # when it should have been sent: latency counts from here
    sent: float = 0.0
    messages: list[tuple[float, object]] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Piece:
    """What a message says: its text, the reason of the end ("" before), tokens read and written up to here."""

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """One request that is over: its pieces, each with its time. `error` is empty where it was answered."""

    due: float
    sent: float
    pieces: tuple[tuple[float, Piece], ...]
    error: str = ""

    @property
    def end(self) -> float:
        """When the last message came."""
        return self.pieces[-1][0]


@dataclass(frozen=True)
class Measured:
    """The figures of a load; times in seconds.

    `written` are the tokens of each request, which two ways must share before they are compared; `texts` are digests of
    what it wrote. `held` is the rate between the first answer and the last, `rate` that over all the time
    from the first request on. `processor` is what the client (in process: everything) used of a processor.
    """

    written: tuple[int, ...]
    read: int
    texts: tuple[str, ...]
    seconds: float
    rate: float
    held: float
    latencies: tuple[float, ...]
    first: tuple[float, ...]
    pauses: tuple[float, ...]
    messages: int
    processor: float
    errors: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Of all requests, from the first one's sending to the last one's end."""
        return sum(self.written) / self.seconds


def figures(answers: Sequence[Answer], callers: int, processor: float) -> Measured:
    """Of a load that is over. Raises ValueError where nothing was answered."""
    good = [answer for answer in answers if not answer.error]
    errors = tuple(answer.error for answer in answers if answer.error)
    if not good:
        raise ValueError(f"no request was answered: {errors[0] if errors else 'there was none'}")
    begin, ends = min(answer.due for answer in answers), sorted(answer.end for answer in good)
    last = [answer.pieces[-1][1] for answer in good]
    steady = answers[callers:] if callers < len(answers) else answers
    return Measured(
        written=tuple(piece.output_tokens for piece in last),
        read=sum(piece.input_tokens for piece in last),
        texts=tuple(_digest(answer) for answer in good),
        seconds=ends[-1] - begin,
        rate=len(good) / (ends[-1] - begin),
        held=(len(good) - 1) / (ends[-1] - ends[0]) if len(good) > 1 and ends[-1] > ends[0] else math.nan,
        latencies=tuple(answer.end - answer.due for answer in good),
        first=tuple(answer.pieces[0][0] - answer.due for answer in steady if not answer.error),
        pauses=_pauses(good, callers),
        messages=sum(len(answer.pieces) for answer in good),
        processor=processor,
        errors=errors,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of them keep within; NaN of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def mean(values: Sequence[float]) -> float:
    """NaN of none."""
    return statistics.fmean(values) if values else math.nan


def _pauses(answers: Sequence[Answer], callers: int) -> tuple[float, ...]:
    """Between messages, while all callers are at it: from their first pieces to the sending of the last request."""
    firsts = sorted(answer.pieces[0][0] for answer in answers)
    begin, end = firsts[min(callers, len(firsts)) - 1], max(answer.sent for answer in answers)
    if begin >= end:
        begin, end = -math.inf, math.inf
    return tuple(
        later - earlier
        for answer in answers
        for (earlier, _), (later, _) in zip(answer.pieces, answer.pieces[1:], strict=False)
        if begin <= earlier < later <= end  # what one read brought, a reader sees at once
    )


def _digest(answer: Answer) -> str:
    text = "".join(piece.text for _, piece in answer.pieces)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
