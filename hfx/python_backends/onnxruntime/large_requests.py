"""Large requests: a thread of their own runs them in parts, and batches of small requests between the parts.

Triton hands the next batch to a Python model when the one before has returned, so that a request of seconds would keep
all others waiting. A large one is answered later, by its response sender.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .sessions import Outputs

LARGE = 4096  # elements of a ragged input above which a request is large, as in native/backend/queue.h
FEW = 8  # large requests that may be open while it is not known how long they take
SECONDS = 3.0  # that a large one may wait for those before it, unless the parameter max_queue_seconds says other
Found = Outputs | Exception


class Turns:
    """Who may use a session: a batch of small requests before the next part of a large one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._small = 0  # batches that wait

    @contextmanager
    def small(self) -> Iterator[None]:
        """The session for a batch of small requests."""
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
        """The session for the parts of a large request, between which `pass_on` is called."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def pass_on(self) -> None:
        """Let the batches of small requests that wait have the session."""
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
    """A request of so many `elements`: what computes, cancels and answers it.

    `run(is_cancelled)` asks between its parts whether the request is still wanted. Another request may end it by its
    `name`, which the front makes; empty: it has none. `answer` raises nothing.
    """

    elements: int
    run: Callable[[Callable[[], bool]], Found]
    is_cancelled: Callable[[], bool]
    answer: Callable[[Found], None]
    cancelled: Found
    name: str = ""
    ended: bool = False


class LargeRequests:
    """Runs large requests one after the other; its methods are for the thread that Triton calls the model by."""

    def __init__(self, turns: Turns, seconds: float = SECONDS) -> None:
        self._turns, self._seconds = turns, seconds
        self._queue: queue.SimpleQueue[LargeRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[LargeRequest] = []
        self._rate = 0.0  # elements a second of the last one; 0: not known yet
        self._thread = threading.Thread(target=self._run, name="large requests", daemon=True)
        self._thread.start()

    def take(self, request: LargeRequest, timeout: float = 0.0) -> bool:
        """Whether the request is taken, whose caller waits for `timeout` seconds (0: any).

        It is not where those before it take longer than the bound, or than its caller waits.
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
        """End the requests of this name, whose caller has left."""
        with self._lock:
            for request in self._open:
                request.ended |= request.name == name

    def close(self) -> None:
        """Wait until all are answered."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._answer(self._queue.get()):
            pass

    def _answer(self, request: LargeRequest | None) -> bool:
        """Run and answer a request; false at the end. Nothing of it is kept, as Triton's objects must be freed."""
        if request is None:
            return False

        try:
            found = self._found(request)
        except BaseException as error:  # a panic of a library is no Exception; the next ones must have their answers
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
