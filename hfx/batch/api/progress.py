"""The progress of a batch in this process, and the exceptions that end the turn of a batch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hfx.batch.api.lines import Chunk, Line

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0  # after a line that is not accepted; the pause doubles each time
LONGEST_PAUSE = 60.0  # even if Retry-After is longer
MOST_ANSWERS = 64 << 20  # bytes of answers kept from an interrupted chunk; answers beyond it are computed again


class Stopped(Exception):
    """The batch was cancelled, or its completion window is over."""


class TurnOver(Exception):
    """The turn of a batch ends within a chunk. The batch continues after at least `pause` seconds."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause


class Busy(TurnOver):
    """The server has not accepted `line`. `pause` is its Retry-After in seconds, and `reason` is its answer."""

    def __init__(self, line: Line, pause: float, reason: str) -> None:
        super().__init__(pause)
        self.line, self.reason = line, reason


@dataclass
class Progress:
    """The `chunks` of a batch, the chunks that are `missing` because they have no part, and the next time to continue.

    Three fields describe the interrupted chunk. `answers` and `tries` are keyed by line number: the answers so far, and
    how often a line whose first answer was not a 200 was tried again. `is_full` is set once an answer was too large to
    keep.

    The batch does not continue before `due` (time.monotonic). `busy` counts its consecutive pauses, the first of which
    began at `since`.
    """

    chunks: list[Chunk]
    missing: list[Chunk]
    answers: dict[int, bytes] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    is_full: bool = False
    due: float = 0.0
    busy: int = 0
    since: float = 0.0

    def keep(self, number: int, answer: bytes) -> None:
        """Record the answer of a line."""
        self.busy = 0
        if sum(map(len, self.answers.values())) + len(answer) <= MOST_ANSWERS:
            self.answers[number] = answer
        else:
            self.is_full = True

    def pause(self, seconds: float) -> None:
        """Record that the turn is over, and that the next turn may begin after at least `seconds`."""
        now = time.monotonic()
        self.since = self.since if self.busy else now
        self.busy += 1
        doubled = min(PAUSE_SECONDS * 2.0 ** min(self.busy - 1, 10), MOST_PAUSE_SECONDS)
        self.due = now + max(doubled, min(seconds, LONGEST_PAUSE))

    def finish(self, chunk: Chunk) -> None:
        """Record that the part of a chunk has been written."""
        self.missing.remove(chunk)
        self.answers.clear()
        self.tries.clear()
        self.is_full, self.busy = False, 0
