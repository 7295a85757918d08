"""How far the process has come with a batch, and why the turn of one ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hfx.batch.api.lines import Chunk, Line

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0  # of a batch after a line that is not accepted, doubled each time
LONGEST_PAUSE = 60.0  # whatever Retry-After says
MOST_ANSWERS = 64 << 20  # bytes of answers that are kept of an interrupted chunk; others are computed again


class Stopped(Exception):
    """The batch was cancelled, or its completion window is over."""


class TurnOver(Exception):
    """The turn of a batch ends within a chunk; it goes on after `pause` seconds, or later."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause


class Busy(TurnOver):
    """The server has not accepted `line`; `pause` seconds are its Retry-After, `reason` what it answered."""

    def __init__(self, line: Line, pause: float, reason: str) -> None:
        super().__init__(pause)
        self.line, self.reason = line, reason


@dataclass
class Progress:
    """What a batch has to do: its `chunks`, and those that are `missing`, as they have no part.

    Of the chunk that was interrupted, by the numbers of lines: the `answers`, and how often a line that got no 200 was
    tried again; it `is_full` once an answer was not kept. The batch is not continued before `due` (of time.monotonic);
    it was `busy` so often in a row, `since`.
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
        """Note the answer of a line."""
        self.busy = 0
        if sum(map(len, self.answers.values())) + len(answer) <= MOST_ANSWERS:
            self.answers[number] = answer
        else:
            self.is_full = True

    def pause(self, seconds: float) -> None:
        """Note that the turn is over, and when the next one may be: after `seconds` at least."""
        now = time.monotonic()
        self.since = self.since if self.busy else now
        self.busy += 1
        doubled = min(PAUSE_SECONDS * 2.0 ** min(self.busy - 1, 10), MOST_PAUSE_SECONDS)
        self.due = now + max(doubled, min(seconds, LONGEST_PAUSE))

    def finish(self, chunk: Chunk) -> None:
        """Note that a chunk has its part."""
        self.missing.remove(chunk)
        self.answers.clear()
        self.tries.clear()
        self.is_full, self.busy = False, 0
