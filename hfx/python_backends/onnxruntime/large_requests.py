"""Large requests: a separate thread runs them in parts, and batches of small requests run between the parts.

Triton passes the next batch to a Python model only after `execute` has returned, so a request that takes seconds would
delay all others. A large request is therefore answered later, through its response sender.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .sessions import Outputs

LARGE = 4096  # elements of a ragged input above which a request is large
FEW = 8  # large requests that may be open while the time that they take is unknown
SECONDS = 3.0  # a large request may wait for earlier ones, unless the parameter max_queue_seconds is set
Found = Outputs | Exception


class Turns:
    """A lock for a session that prefers a batch of small requests to the next part of a large request."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._small = 0  # batches that wait

    @contextmanager
    def small(self) -> Iterator[None]:
        """Hold the session for a batch of small requests."""
        with self._changed:
            self._small += 1
            self._changed.wait_for(lambda: not self._taken)
            self._small -= 1
            self._taken = True
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def large(self) -> Iterator[None]:
        """Hold the session for the parts of a large request; `pass_on` is called between the parts."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def pass_on(self) -> None:
        """Give the session to the waiting batches of small requests, and take it back afterwards."""
        self._give_back()
        self._take()

    def _take(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not (self._taken or self._small))
            self._taken = True

    def _give_back(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()


@dataclass(eq=False)
class LargeRequest:
    """A request of `elements` elements, with the functions that compute, cancel and answer it.

    `run(is_cancelled)` calls `is_cancelled` between its parts. Another request may end this request by its `name`,
    which the front makes; the name is empty if the request has none. `answer` raises nothing.
    """

    elements: int
    run: Callable[[Callable[[], bool]], Found]
    is_cancelled: Callable[[], bool]
    answer: Callable[[Found], None]
    cancelled: Found
    name: str = ""
    ended: bool = False


class LargeRequests:
    """Runs large requests one after the other; only the thread on which Triton calls the model may use it."""

    def __init__(self, turns: Turns, seconds: float = SECONDS) -> None:
        self._turns, self._seconds = turns, seconds
        self._queue: queue.SimpleQueue[LargeRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[LargeRequest] = []
        self._rate = 0.0  # elements a second of the last request; 0: not known yet
        self._thread = threading.Thread(target=self._run, name="large requests", daemon=True)
        self._thread.start()

    def take(self, request: LargeRequest, timeout: float = 0.0) -> bool:
        """Queue a request whose caller waits for `timeout` seconds (0: any time), and return whether it was taken.

        A request is refused if the requests before it take longer than the bound, or longer than its caller waits.
        """
        with self._lock:
            wait = sum(each.elements for each in self._open) / self._rate if self._rate else 0.0
            too_many = self._seconds and not self._rate and len(self._open) >= FEW
            if too_many or 0 < self._seconds < wait or 0 < timeout < wait:
                return False
            self._open.append(request)
        self._queue.put(request)
        return True

    def end(self, name: str) -> None:
        """End the requests with this name, whose caller no longer wants them."""
        with self._lock:
            for request in self._open:
                request.ended |= request.name == name

    def close(self) -> None:
        """Wait until all requests are answered."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._answer(self._queue.get()):
            pass

    def _answer(self, request: LargeRequest | None) -> bool:
        """Run and answer a request; return false at the end. Keeps no reference: Triton's objects must be freed."""
        if request is None:
            return False

        try:
            found = self._found(request)
        except BaseException as error:  # a panic of a library is not an Exception; later requests need their answers
            found = RuntimeError(f"{type(error).__name__}: {error}")
        with self._lock:
            self._open.remove(request)
        request.answer(found)
        return True

    def _found(self, request: LargeRequest) -> Found:
        def is_left() -> bool:
            self._turns.pass_on()
            return request.ended or request.is_cancelled()

        began = time.perf_counter()
        if request.ended or request.is_cancelled():
            return request.cancelled
        with self._turns.large():
            found = request.run(is_left)
        if not isinstance(found, Exception):
            self._rate = request.elements / (time.perf_counter() - began)
        return found
