"""The thread between the engine and the callers: it makes texts of tokens, sends them, and polls for cancellation.

The engine's thread only hands over, once a step. What takes long is done in threads of its own. Pieces that wait anyway
are joined, and each request's last response ends it, once.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.jobs import Listener
from ..errors import reason_of, with_reason
from ..generation.pieces import Piece, join_pieces
from .cancellation_poller import CancellationPoller
from .request import GenerateRequest, Opener

# Threads that tokenize and submit. Long texts have some of their own: short ones must not wait for them, nor documents
# for one that takes long to divide.
OPENERS = 4
LONG_OPENERS = 2
LONG_TEXT = 2**16  # bytes or characters
# Of answers with a form, whose grammar may take a second or two to be refused: other requests must not wait for it.
FORM_OPENERS = 2


class Dispatcher:
    """Sees each request to its end.

    `opener` says what opens a request. `ended` is called once for each, with its error, when nothing of it is left to
    be done. `log` gets a line for what no caller can be sent.
    """

    def __init__(
        self,
        opener: Opener,
        ended: Callable[[GenerateRequest, Exception | None], None],
        log: Callable[[str], None],
    ) -> None:
        self._opener = opener
        self._ended = ended
        self._log = log
        self._openers = ThreadPoolExecutor(OPENERS, "open")
        self._long_openers = ThreadPoolExecutor(LONG_OPENERS, "open-long")
        self._form_openers = ThreadPoolExecutor(FORM_OPENERS, "open-form")
        self._news: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._notify = self._news.put
        self._responses = ResponseWriter()
        self._poller: CancellationPoller[GenerateRequest] = CancellationPoller()
        self._thread = threading.Thread(target=self._run, name="responses")
        self._thread.start()

    def submit(self, request: GenerateRequest) -> None:
        """See a request to its end."""
        if request.is_answered:
            self._notify([request])
            return
        self._poller.add(request)
        if len(self._poller) == 1:
            self._notify([])  # the thread may wait for news only
        long = self._long_openers if len(request.text) > LONG_TEXT else self._openers
        (self._form_openers if request.has_form else long).submit(self._open, request)

    def close(self) -> None:
        """End the thread when what it has is sent; every request must be over."""
        for pool in (self._openers, self._long_openers, self._form_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._thread.join()
        self._poller.clear()  # what they hold of Triton must be gone before Triton is

    def _open(self, request: GenerateRequest) -> None:
        request.submit(self._opener, Listener(self._notify, request), self._long_openers.submit)
        self._notify([request])

    # The thread holds no request while it waits: one that is over must be freed at once, and Triton's objects with it.

    def _run(self) -> None:
        while self._step(self._receive()):
            pass

    def _receive(self) -> list[GenerateRequest] | None:
        """Requests with news, if there are any before something is to be sent or polled; None at the end."""
        waits = [seconds for seconds in (self._responses.wait(), self._poller.wait()) if seconds is not None]
        try:
            return self._news.get(timeout=min(waits, default=None))
        except queue.Empty:
            return []

    def _step(self, requests: list[GenerateRequest] | None) -> bool:
        """Make the texts of requests that have news, send what is due, poll for cancellation; false at the end."""
        for request in dict.fromkeys(requests or ()):
            if not request.done:
                self._advance(request)
        self._send(self._responses.take(all_of_them=requests is None))
        self._poll(self._poller.due(time.monotonic()))
        return requests is not None

    def _advance(self, request: GenerateRequest) -> None:
        pieces, error = request.advance()
        self._responses.put(request, pieces, error)
        if request.done:
            self._ended(request, error)

    def _send(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            try:
                self._responses.send(request)
            except Exception as error:
                self._log(f"a response could not be sent: {error!r}")
        self._responses.throttle(len(requests))

    def _poll(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            try:
                late = request.check_caller()
            except Exception as error:
                self._log(f"a request could not be polled for cancellation: {error!r}")
                continue
            if late is not None:
                self._responses.put(request, [], late)


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
