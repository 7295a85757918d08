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
from ..generation.streams import Waker
from .cancellation_poller import CancellationPoller
from .request import ActiveRequest
from .response_writer import ResponseQueue, Update

# Threads that tokenize and submit. Long texts have one of their own: short ones must not wait for them.
OPENERS = 4
LONG_TEXT = 2**16  # bytes or characters


class Dispatcher:
    """Sees each request to its end. `log` gets a line for what no caller can be sent."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.responses = ResponseQueue()
        self._log = log
        self._openers = ThreadPoolExecutor(OPENERS, "open")
        self._long_openers = ThreadPoolExecutor(1, "open-long")
        self._news: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._notify = self._news.put
        self._poller: CancellationPoller[ActiveRequest] = CancellationPoller()
        self._threads = [
            threading.Thread(target=self._make_texts, name="texts"),
            threading.Thread(target=self._send, name="responses"),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: ActiveRequest, size: int) -> None:
        """See a request with a text of `size` to its end."""
        self._poller.add(request)
        if len(self._poller) == 1:
            self.responses.wake()  # its thread may wait for pieces only
        (self._openers if size <= LONG_TEXT else self._long_openers).submit(self._open, request)

    def close(self) -> None:
        """End the threads when what they have is done; every request must be over."""
        for pool in (self._openers, self._long_openers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._news.put(None)
        self._threads[0].join()
        self.responses.close()
        self._threads[1].join()
        self._poller.clear()  # what they hold of Triton must be gone before Triton is

    def _open(self, request: ActiveRequest) -> None:
        refused = request.open(Waker(Listener(self._notify, request), self._long_openers.submit))
        if refused is None:
            self._notify([request])
        else:
            self.responses.put([refused])

    def _make_texts(self) -> None:
        while (requests := self._news.get()) is not None:
            self.responses.put([request.advance() for request in dict.fromkeys(requests) if not request.done])

    def _send(self) -> None:
        while (replies := self.responses.take(self._poller.wait())) is not None:
            for reply in replies:
                try:
                    self.responses.send(reply)
                except Exception as error:
                    self._log(f"a response could not be sent: {error!r}")
            self.responses.throttle(len(replies))
            late = [update for request in self._poller.due(time.monotonic()) if (update := self._checked(request))]
            if late:
                self.responses.put(late)

    def _checked(self, request: ActiveRequest) -> Update | None:
        try:
            return request.check_caller()
        except Exception as error:
            self._log(f"a request could not be polled for cancellation: {error!r}")
            return None
