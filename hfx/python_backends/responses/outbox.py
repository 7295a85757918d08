"""Responses on their way out: pieces that wait anyway are joined, and each request's last response ends it, once.

Owns what is to be sent, in which order and how much of the time; knows neither Triton nor how texts are made.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from ..generation.results import Piece, merged

# A response costs so much of a processor here, in Triton's process and at a caller on the same machine, together.
# Responses may take this share of the cores: while sending rests, pieces of the same request join. A request's first
# and last pieces don't wait for the rest to be over.
RESPONSE_SECONDS = 330e-6
SHARE = 0.1
LONGEST_REST = 0.25  # seconds
PATIENT_AT_ONCE = 8  # so that a first piece never waits for more than these to be sent


class Channel(Protocol):
    """One request's way back to its caller; each call goes to another process."""

    def send(self, piece: Piece) -> None:
        """Send a piece; one with a finish reason is the last response."""

    def refuse(self, error: Exception) -> None:
        """Send an error as the last response."""

    def left(self) -> bool:
        """Whether the caller has gone."""


class Reply:
    """The responses of one request."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.pieces: list[Piece] = []
        self.error: Exception | None = None
        self.begun = self.ended = self.queued = False

    @property
    def over(self) -> bool:
        """Whether no more can come."""
        return self.ended


class Outbox:
    """Replies with something to send. Any thread puts, one thread takes and sends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._urgent: deque[Reply] = deque()
        self._patient: deque[Reply] = deque()
        self._rests_until = 0.0
        self._rest_seconds = RESPONSE_SECONDS / (SHARE * len(os.sched_getaffinity(0)))
        self._closed = False

    def put(self, made: Iterable[tuple[Reply, list[Piece], Exception | None]]) -> None:
        """Add pieces, and errors after them. An error or a finish reason ends a reply; what comes after is lost."""
        with self._changed:
            rested = not self._patient
            for reply, pieces, error in made:
                self._put(reply, pieces, error)
            if self._urgent or (rested and self._patient):
                self._changed.notify()

    def fail(self, reply: Reply, error: Exception) -> None:
        """End a reply with an error."""
        self.put([(reply, [], error)])

    def close(self) -> None:
        """Let `take` return None once everything is sent."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Let `take` return, though there may be nothing."""
        with self._changed:
            self._changed.notify()

    def take(self, timeout: float | None) -> list[Reply] | None:
        """Replies to be sent now, within `timeout` seconds; None at the end."""
        with self._changed:
            if not (self._urgent or self._closed):
                self._changed.wait(self._until_patient(timeout))
            taken = [*self._urgent]
            self._urgent.clear()
            if self._closed or time.monotonic() >= self._rests_until:
                taken += [self._patient.popleft() for _ in range(min(PATIENT_AT_ONCE, len(self._patient)))]
            return taken if taken or not self._closed else None

    def rest(self, sent: int) -> None:
        """Let other pieces than first and last ones wait, as so many responses were sent."""
        now = time.monotonic()
        until = max(self._rests_until, now) + sent * self._rest_seconds
        self._rests_until = min(until, now + LONGEST_REST)

    def send(self, reply: Reply) -> None:
        """Send what a reply holds."""
        with self._changed:
            pieces, reply.pieces = reply.pieces, []
            error, reply.error = reply.error, None
            reply.queued = False
        if pieces:
            reply.channel.send(merged(pieces))
        if error is not None:
            reply.channel.refuse(error)

    def _put(self, reply: Reply, pieces: list[Piece], error: Exception | None) -> None:
        if reply.ended:
            return
        is_first = bool(pieces) and not reply.begun
        reply.pieces += pieces
        reply.error = error
        reply.ended = error is not None or bool(pieces and pieces[-1].finish_reason)
        if reply.ended or is_first:
            self._urgent.append(reply)
        elif not reply.queued:
            self._patient.append(reply)
            reply.queued = True
        reply.begun = reply.begun or is_first

    def _until_patient(self, timeout: float | None) -> float | None:
        if not self._patient:
            return timeout
        rest = max(self._rests_until - time.monotonic(), 0.0)
        return rest if timeout is None else min(rest, timeout)
