"""The progress of a batch in this process, and the exceptions that end its turn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import IO

from hfx.batch.api.lines import Line
from hfx.batch.folder import storage
from hfx.batch.plan import Plan, PlannedChunk

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0  # after a line that is not accepted; the pause doubles each time
LONGEST_PAUSE = 60.0  # even if Retry-After is longer
MOST_ANSWERS = 64 << 20  # bytes of a chunk's answers in memory; if there are more, all of them are in a temporary file


class TurnOver(Exception):
    """The turn of a batch ends within a chunk: the batch is over, or other labels have batches."""


class Busy(TurnOver):
    """The server has not accepted `line`. `pause` is its Retry-After in seconds, and `reason` is its answer."""

    def __init__(self, line: Line, pause: float, reason: str) -> None:
        super().__init__(reason)
        self.line, self.pause, self.reason = line, pause, reason


@dataclass
class Progress:
    """The `plan` of a batch, the chunks that are `missing` because they have no part, and the next time to continue.

    Three fields describe the chunk in progress. `answers` has the answers so far, and `places` the offset and size of
    each; `tries` counts how often a line whose first answer was not a 200 was tried again. The keys are line numbers.

    The batch does not continue before `due` (time.monotonic). `busy` counts its consecutive pauses, the first of which
    began at `since`.
    """

    plan: Plan[PlannedChunk]
    missing: list[PlannedChunk]
    answers: IO[bytes] = field(default_factory=lambda: SpooledTemporaryFile(MOST_ANSWERS))  # noqa: SIM115 - of a batch
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    tries: dict[int, int] = field(default_factory=dict)
    due: float = 0.0
    busy: int = 0
    since: float = 0.0

    def keep(self, number: int, answer: bytes) -> None:
        """Record the answer of line `number`. Raises StorageFull and JobError."""
        with storage(Path(gettempdir())):
            offset = self.answers.seek(0, os.SEEK_END)
            self.answers.write(answer)
            self.answers.flush()  # raises here if the disk is full
        self.places[number] = offset, len(answer)
        self.busy = 0

    def kept(self) -> Iterator[bytes]:
        """Yield the answers in the order of their lines."""
        for _, (offset, size) in sorted(self.places.items()):
            self.answers.seek(offset)
            yield self.answers.read(size)

    def pause(self, seconds: float) -> None:
        """Record that the turn is over, and that the next turn may begin after at least `seconds`."""
        now = time.monotonic()
        self.since = self.since if self.busy else now
        self.busy += 1
        doubled = min(PAUSE_SECONDS * 2.0 ** min(self.busy - 1, 10), MOST_PAUSE_SECONDS)
        self.due = now + max(doubled, min(seconds, LONGEST_PAUSE))

    def finish(self) -> None:
        """Record that the part of the chunk in progress has been written."""
        del self.missing[0]
        self.answers.truncate(0)
        self.places.clear()
        self.tries.clear()
        self.busy = 0
