"""The thread between the engine and the callers: it makes texts of tokens, sends them, and polls for cancellation.

The engine's thread only hands over, once a step. What takes long is done in threads of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.jobs import Listener
from ..generation.streams import TextStream
from .cancellation_poller import CancellationPoller
from .request import GenerateRequest
from .response_writer import ResponseWriter

# Threads that tokenize and submit. Long texts have some of their own: short ones must not wait for them, nor documents
# for one that takes long to divide.
OPENERS = 4
LONG_OPENERS = 2
LONG_TEXT = 2**16  # bytes or characters


class Dispatcher:
    """Sees each request to its end.

    `open_stream` submits a request. `ended` is called once for each, with its error, when nothing of it is left to be
    done. `log` gets a line for what no caller can be sent.
    """

    def __init__(
        self,
        open_stream: Callable[[GenerateRequest], TextStream],
        ended: Callable[[GenerateRequest, Exception | None], None],
        log: Callable[[str], None],
    ) -> None:
        self._open_stream = open_stream
        self._ended = ended
        self._log = log
        self._openers = ThreadPoolExecutor(OPENERS, "open")
        self._long_openers = ThreadPoolExecutor(LONG_OPENERS, "open-long")
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
        (self._openers if len(request.text) <= LONG_TEXT else self._long_openers).submit(self._open, request)

    def close(self) -> None:
        """End the thread when what it has is sent; every request must be over."""
        for pool in (self._openers, self._long_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._thread.join()
        self._poller.clear()  # what they hold of Triton must be gone before Triton is

    def _open(self, request: GenerateRequest) -> None:
        request.open(self._open_stream, Listener(self._notify, request), self._long_openers.submit)
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
