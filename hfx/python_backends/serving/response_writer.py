"""Responses to be sent: pieces that wait anyway are joined, and each request's last response ends it, once."""

from __future__ import annotations

import os
import time
from collections import deque

from ..errors import reason_of, with_reason
from ..generation.pieces import Piece, join_pieces
from .request import GenerateRequest

# A response costs so much of a processor here, in Triton's process and at a caller on the same machine, together.
# Responses may take this share of the cores: in the pauses between them, pieces of the same request join. A request's
# first and last pieces are sent during a pause too.
RESPONSE_SECONDS = 330e-6
SHARE = 0.1
LONGEST_PAUSE = 0.25  # seconds
COALESCED_AT_ONCE = 8  # so that a first piece never waits for more than these to be sent


class ResponseWriter:
    """Requests with something to be sent. For one thread."""

    def __init__(self) -> None:
        self._immediate: list[GenerateRequest] = []
        self._coalesced: deque[GenerateRequest] = deque()
        self._paused_until = 0.0
        self._pause_seconds = RESPONSE_SECONDS / (SHARE * len(os.sched_getaffinity(0)))

    def put(self, request: GenerateRequest, pieces: list[Piece], error: Exception | None = None) -> None:
        """Add pieces and an error. An error or a finish reason ends a request; what comes after is dropped."""
        if request.ended:
            return
        is_first = bool(pieces) and not request.begun
        request.unsent += pieces
        request.error = error
        request.ended = error is not None or bool(pieces and pieces[-1].finish_reason)
        if request.ended or is_first:
            self._immediate.append(request)
        elif pieces and not request.queued:
            self._coalesced.append(request)
            request.queued = True
        request.begun = request.begun or is_first

    def take(self, all_of_them: bool = False) -> list[GenerateRequest]:
        """Requests to be sent now, or all."""
        taken, self._immediate = self._immediate, []
        if all_of_them or time.monotonic() >= self._paused_until:
            count = len(self._coalesced) if all_of_them else min(COALESCED_AT_ONCE, len(self._coalesced))
            taken += [self._coalesced.popleft() for _ in range(count)]
        return taken

    def wait(self) -> float | None:
        """Seconds until there is something to take, if nothing is put before; None where there is nothing."""
        if self._immediate:
            return 0.0
        return max(self._paused_until - time.monotonic(), 0.0) if self._coalesced else None

    def throttle(self, sent: int) -> None:
        """Pause, but for first and last pieces, as so many responses were sent."""
        now = time.monotonic()
        until = max(self._paused_until, now) + sent * self._pause_seconds
        self._paused_until = min(until, now + LONGEST_PAUSE)

    def send(self, request: GenerateRequest) -> None:
        """Send what a request holds."""
        pieces, request.unsent = request.unsent, []
        error, request.error = request.error, None
        request.queued = False
        if pieces:
            piece = join_pieces(pieces)
            request.channel.send(request.outputs(piece), final=bool(piece.finish_reason))
        if error is not None:
            reason = reason_of(error)
            request.channel.fail(with_reason(reason, error), reason.code)
