"""The thread between the engine and the callers: it turns tokens into text, sends it, and polls for cancellation.

The engine's thread only notifies it, once a step. Tokenizing and other slow work has separate threads. Unsent pieces of
a request are joined. The last response of each request is sent exactly once.
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
from ..errors import Unexpected, reason_of, with_reason
from ..generation.pieces import Piece, join_pieces
from .cancellation_poller import CancellationPoller
from .request import GenerateRequest, Opener

# Threads that tokenize and submit. Long texts have separate threads, so that short texts don't wait for them.
OPENERS = 4
LONG_OPENERS = 2
LONG_TEXT = 2**16  # bytes or characters
# Threads for structured outputs: other requests must not wait for a grammar, which may take seconds to be refused.
STRUCTURE_OPENERS = 2


class Dispatcher:
    """Submits requests to the engine, and sends their responses until each has ended.

    `opener` opens the stream of a request. `ended` is called once for each request, with its error, after its last
    piece. `log` is called with a line about each error that can't be sent to a caller.
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
        self._structure_openers = ThreadPoolExecutor(STRUCTURE_OPENERS, "open-structured")
        self._news: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._notify = self._news.put
        self._responses = ResponseWriter()
        self._poller: CancellationPoller[GenerateRequest] = CancellationPoller()
        self._thread = threading.Thread(target=self._run, name="responses")
        self._thread.start()

    def submit(self, request: GenerateRequest) -> None:
        """Submit a request, and send its responses until it ends. For any thread."""
        if request.is_answered:
            self._notify([request])
            return
        self._poller.add(request)
        if len(self._poller) == 1:
            self._notify([])  # wakes the thread up, which may be waiting without a timeout
        long = self._long_openers if len(request.text) > LONG_TEXT else self._openers
        (self._structure_openers if request.is_structured else long).submit(self._open, request)

    def close(self) -> None:
        """Send the rest and end the thread. All requests must have ended."""
        for pool in (self._openers, self._long_openers, self._structure_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._thread.join()
        self._poller.clear()  # the requests hold objects of Triton, which must be freed before Triton ends

    def _open(self, request: GenerateRequest) -> None:
        request.submit(self._opener, Listener(self._notify, request), self._long_openers.submit)
        self._notify([request])

    # The thread has no reference to a request while it waits, so that an ended one and its Triton objects are freed.

    def _run(self) -> None:
        while self._step(self._receive()):
            pass

    def _receive(self) -> list[GenerateRequest] | None:
        """Wait for the next notification, or until a response or a poll is due. Return None at the end."""
        waits = [seconds for seconds in (self._responses.wait(), self._poller.wait()) if seconds is not None]
        try:
            return self._news.get(timeout=min(waits, default=None))
        except queue.Empty:
            return []

    def _step(self, requests: list[GenerateRequest] | None) -> bool:
        """Advance the notified requests, send due responses, poll for cancellation. Return False at the end."""
        for request in dict.fromkeys(requests or ()):
            if not request.done:
                self._advance(request)
        self._send(self._responses.take(all_of_them=requests is None))
        self._poll(self._poller.due(time.monotonic()))
        return requests is not None

    def _advance(self, request: GenerateRequest) -> None:
        pieces, error = request.advance()
        if isinstance(error, Unexpected):
            self._log(f"a request ended with an unexpected error: {error.cause!r}")
        self._responses.put(request, pieces, error)
        if request.done:
            self._ended(request, error)

    def _send(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            try:
                self._responses.send(request)
            except BaseException as error:  # a panic of a library in Rust is no Exception
                self._log(f"a response could not be sent: {error!r}")
        self._responses.throttle(len(requests))

    def _poll(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            try:
                late = request.check_caller()
            except BaseException as error:
                self._log(f"a request could not be polled for cancellation: {error!r}")
                continue
            if late is not None:
                self._responses.put(request, [], late)


# RESPONSE_SECONDS is the processor time of a response in this process, in Triton's, and in a caller on the same
# machine, together. Responses may take SHARE of the cores. They are sent with pauses, during which further pieces of a
# request are joined to its unsent ones. First and last pieces are sent during a pause, too.
RESPONSE_SECONDS = 330e-6
SHARE = 0.1
LONGEST_PAUSE = 0.25  # seconds
COALESCED_AT_ONCE = 8  # the most responses in a row, so that a first piece waits for no more than these


class ResponseWriter:
    """The unsent pieces of requests, and when to send them. For one thread."""

    def __init__(self) -> None:
        self._immediate: list[GenerateRequest] = []
        self._coalesced: deque[GenerateRequest] = deque()
        self._paused_until = 0.0
        self._pause_seconds = RESPONSE_SECONDS / (SHARE * len(os.sched_getaffinity(0)))

    def put(self, request: GenerateRequest, pieces: list[Piece], error: Exception | None = None) -> None:
        """Add pieces and an error to a request.

        An error or a finish reason ends the request; later pieces and errors are dropped.
        """
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
        """Remove and return the requests whose responses are due, or all requests."""
        taken, self._immediate = self._immediate, []
        if all_of_them or time.monotonic() >= self._paused_until:
            count = len(self._coalesced) if all_of_them else min(COALESCED_AT_ONCE, len(self._coalesced))
            taken += [self._coalesced.popleft() for _ in range(count)]
        return taken

    def wait(self) -> float | None:
        """Return the seconds until the next unsent response is due; None if there is none."""
        if self._immediate:
            return 0.0
        return max(self._paused_until - time.monotonic(), 0.0) if self._coalesced else None

    def throttle(self, sent: int) -> None:
        """Pause for the processor time of the `sent` responses. First and last pieces don't wait for the end."""
        now = time.monotonic()
        until = max(self._paused_until, now) + sent * self._pause_seconds
        self._paused_until = min(until, now + LONGEST_PAUSE)

    def send(self, request: GenerateRequest) -> None:
        """Send the unsent pieces of a request, joined, and its error."""
        pieces, request.unsent = request.unsent, []
        error, request.error = request.error, None
        request.queued = False
        if pieces:
            piece = join_pieces(pieces)
            request.channel.send(request.outputs(piece), final=bool(piece.finish_reason))
        if error is not None:
            reason = reason_of(error)
            request.channel.fail(with_reason(reason, error), reason.code)
