"""Refusals of generators whose queues are full, answered here instead of by Triton.

A refusal takes about a millisecond in the processes of Triton and of the model, which an overloaded engine then lacks.
As the model itself does, the front refuses further requests for a short time while as many are in progress as before.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from hfx.python_backends.errors import QUEUE_FULL, QueueFull, with_reason

RECENT_SECONDS = 0.25  # afterwards, a request is forwarded, and brings a new answer
_ERROR = b'{"error":"%b"}' % with_reason(QUEUE_FULL, QueueFull()).encode()
FULL = (_ERROR, b"data: %b\n\n" % _ERROR)  # the bodies of such a refusal: of infer and generate, and of a stream


class KnownAnswer(NamedTuple):
    """An answer that needs no request to Triton, such as its recent refusal because a model's queue is full."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Recent(NamedTuple):
    """A refusal of a request beside which `others` were in progress, and the time until which it is recent."""

    answer: KnownAnswer
    others: int
    until: float


class FullModels:
    """The requests in progress to each path of Triton's, and its refusals because a queue was full."""

    def __init__(self) -> None:
        self._in_progress: Counter[bytes] = Counter()
        self._refused: dict[bytes, Recent] = {}

    def answer(self, path: bytes) -> KnownAnswer | None:
        """Return the answer to a further request to `path`, or None if it has to be forwarded."""
        recent = self._refused.get(path)
        if recent is None or self._in_progress[path] < recent.others:
            return None
        if time.monotonic() <= recent.until:
            return recent.answer
        del self._refused[path]
        return None

    def begin(self, path: bytes) -> None:
        """Count a request that is forwarded to `path`, until its `end`."""
        self._in_progress[path] += 1

    def end(self, path: bytes, answer: KnownAnswer | None) -> None:
        """Count a request no longer. `answer` is its answer if its model was full."""
        self._in_progress[path] -= 1
        others = self._in_progress[path]
        if not others:
            del self._in_progress[path]
        elif answer is not None:
            self._refused[path] = Recent(answer, others, time.monotonic() + RECENT_SECONDS)
