"""The threads between the engine and the callers: one makes texts of tokens, one sends them and polls for cancellation.

The engine's thread only hands over, once a step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..engine.handle import Listener
from ..generation.streams import TextStream, Waker
from .cancellation_poller import CancellationPoller
from .request import GenerateRequest, Update
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
        self.responses = ResponseWriter()
        self._open_stream = open_stream
        self._ended = ended
        self._log = log
        self._openers = ThreadPoolExecutor(OPENERS, "open")
        self._long_openers = ThreadPoolExecutor(LONG_OPENERS, "open-long")
        self._news: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._notify = self._news.put
        self._poller: CancellationPoller[GenerateRequest] = CancellationPoller()
        self._threads = [
            threading.Thread(target=self._make_texts, name="texts"),
            threading.Thread(target=self._send, name="responses"),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: GenerateRequest) -> None:
        """See a request to its end."""
        self._poller.add(request)
        if len(self._poller) == 1:
            self.responses.wake()  # its thread may wait for pieces only
        (self._openers if len(request.text) <= LONG_TEXT else self._long_openers).submit(self._open, request)

    def close(self) -> None:
        """End the threads when what they have is done; every request must be over."""
        for pool in (self._openers, self._long_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._threads[0].join()
        self.responses.close()
        self._threads[1].join()
        self._poller.clear()  # what they hold of Triton must be gone before Triton is

    def _open(self, request: GenerateRequest) -> None:
        refused = request.open(self._open_stream)
        if refused is None:
            self._notify([request])
        else:
            self._put([refused])

    # The threads hold no request while they wait: one that is over must be freed at once, and Triton's objects with it.

    def _make_texts(self) -> None:
        while self._advance(self._news.get()):
            pass

    def _advance(self, requests: list[GenerateRequest] | None) -> bool:
        """Make the texts of requests that have news; false at the end."""
        if requests is None:
            return False
        open_ = [request for request in dict.fromkeys(requests) if not request.done]
        self._put([request.advance(self._waker(request)) for request in open_])
        return True

    def _waker(self, request: GenerateRequest) -> Waker:
        return Waker(Listener(self._notify, request), self._long_openers.submit)

    def _put(self, updates: list[Update]) -> None:
        self.responses.put(updates)
        for request, _, error in updates:
            if request.done:
                self._ended(request, error)

    def _send(self) -> None:
        while self._respond(self.responses.take(self._poller.wait())):
            self._poll()

    def _respond(self, requests: list[GenerateRequest] | None) -> bool:
        """Send what `requests` hold; false at the end."""
        for request in requests or ():
            try:
                self.responses.send(request)
            except Exception as error:
                self._log(f"a response could not be sent: {error!r}")
        self.responses.throttle(len(requests or ()))
        return requests is not None

    def _poll(self) -> None:
        late = [update for request in self._poller.due(time.monotonic()) if (update := self._checked(request))]
        if late:
            self.responses.put(late)

    def _checked(self, request: GenerateRequest) -> Update | None:
        try:
            return request.check_caller()
        except Exception as error:
            self._log(f"a request could not be polled for cancellation: {error!r}")
            return None
