"""Requests as they went: a record of each while it is under way, then a row of numbers on the tape.

Answers are kept as they came and read after the clock has stopped; when too many wait, the oldest are read meanwhile,
one for each that comes, so that a long load needs no more memory than its rows. Knows no protocol.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hfx.client.results import CANCELLED
from hfx.errors import RequestCancelled, RequestTimeout, ServerError
from hfx.perf.builtin.messages import Piece

MOST_WAITING = 64 << 20  # bytes of answers that are not read yet
SUCCEEDED = 0  # of Tape.kind
TIMED_OUT = RequestTimeout.__name__
Failure = tuple[str, str]  # a kind of hfx.errors, and words


class Record:
    """A request under way; times are seconds from the start."""

    __slots__ = ("caller", "due", "end", "error", "messages", "number", "sent", "times")

    def __init__(self, number: int, due: float, caller: int = 0) -> None:
        self.number = number
        self.caller = caller
        self.due = due  # when it should have been sent: latency counts from here
        self.sent = due
        self.end = due
        self.times: list[float] = []  # of messages
        self.messages: list[bytes] = []
        self.error: Failure | None = None

    @property
    def ask(self) -> int:
        """The number of what it asks: requests of the warm-up have numbers below 0, and ask the same in turn."""
        return self.number if self.number >= 0 else -1 - self.number


def _floats() -> array[float]:
    return array("d")


def _numbers() -> array[int]:
    return array("q")


@dataclass
class Tape:
    """A row for each counted request, in the order of their ends; seconds, NaN where there is nothing.

    `kind` is an index into `kinds`, the first of which is success. `gaps` are pauses between messages, `gap_count` of
    them for each row. `words` has the first message of each kind.
    """

    number: array[int] = field(default_factory=_numbers)
    caller: array[int] = field(default_factory=_numbers)
    due: array[float] = field(default_factory=_floats)
    late: array[float] = field(default_factory=_floats)
    took: array[float] = field(default_factory=_floats)
    kind: array[int] = field(default_factory=_numbers)
    ttft: array[float] = field(default_factory=_floats)
    tpot: array[float] = field(default_factory=_floats)
    read: array[int] = field(default_factory=_numbers)
    written: array[int] = field(default_factory=_numbers)
    truncated: array[int] = field(default_factory=_numbers)
    gap_count: array[int] = field(default_factory=_numbers)
    gaps: array[float] = field(default_factory=_floats)
    kinds: list[str] = field(default_factory=lambda: [""])
    words: dict[str, str] = field(default_factory=dict)


class Recorder:
    """Puts records on a tape. `read` says what a message says; None where answers are not looked into.

    `explain` makes an error of what a stream says of one.
    """

    def __init__(self, read: Callable[[bytes], Piece] | None, explain: Callable[[str], Failure], stream: bool) -> None:
        self.tape = Tape()
        self._explain = explain
        self._read = read
        self._stream = stream
        self._waiting: deque[Record] = deque()
        self._bytes = 0

    def add(self, record: Record) -> None:
        """Take a request that has ended."""
        if self._read is None or record.error is not None:
            self._write(record, ())
            return
        self._waiting.append(record)
        self._bytes += sum(map(len, record.messages))
        if self._bytes > MOST_WAITING:
            self._next()

    def finish(self) -> Tape:
        """Read all that waits."""
        while self._waiting:
            self._next()
        return self.tape

    def _next(self) -> None:
        record = self._waiting.popleft()
        self._bytes -= sum(map(len, record.messages))
        assert self._read is not None
        pieces = tuple(map(self._read, record.messages))
        last = pieces[-1] if pieces else Piece()
        record.error = self._explain(last.error) if last.error else _verdict(last)
        self._write(record, pieces)

    def _write(self, record: Record, pieces: tuple[Piece, ...]) -> None:
        tape = self.tape
        tape.number.append(record.number)
        tape.caller.append(record.caller)
        tape.due.append(record.due)
        tape.late.append(record.sent - record.due)
        tape.took.append(record.end - record.due)
        tape.kind.append(self._kind(record.error))
        last = pieces[-1] if pieces else Piece()
        tape.read.append(last.read)
        tape.written.append(last.written)
        tape.truncated.append(last.truncated)
        first, each, gaps = _timed(record, pieces) if self._stream and pieces else (math.nan, math.nan, [])
        tape.ttft.append(first)
        tape.tpot.append(each)
        tape.gap_count.append(len(gaps))
        tape.gaps.extend(gaps)

    def _kind(self, error: Failure | None) -> int:
        if error is None:
            return SUCCEEDED
        name, words = error
        if name not in self.tape.words:
            self.tape.words[name] = words
            self.tape.kinds.append(name)
        return self.tape.kinds.index(name)


def _verdict(last: Piece) -> Failure | None:
    """What is wrong with an answer that came without an error."""
    if last.finish_reason == CANCELLED:
        return RequestCancelled.__name__, f"The server ended the request after {last.written} tokens."
    if not last.finish_reason:
        return ServerError.__name__, "The answer ended without its last piece."
    return None


def _timed(record: Record, pieces: tuple[Piece, ...]) -> tuple[float, float, list[float]]:
    """Seconds to the first token, between tokens on average, and between messages from the first token on."""
    start = next((at for at, piece in enumerate(pieces) if piece.written), None)
    if start is None:
        return math.nan, math.nan, []
    times = record.times[start:]
    tokens = pieces[-1].written - pieces[start].written
    each = (times[-1] - times[0]) / tokens if tokens > 0 else math.nan
    return times[0] - record.due, each, [later - earlier for earlier, later in itertools.pairwise(times)]
