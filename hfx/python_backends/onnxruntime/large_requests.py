"""Large requests: separate threads run them in parts, in turns with each other and with batches of small requests.

Triton passes the next batch to a Python model only after `execute` has returned, so a request that takes seconds would
delay all others. A large request is therefore answered later, through its response sender. The rule by which large
requests are taken and run is that of the C++ backend (native/backend/queue.cpp, the oracle).
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .sessions import Outputs

LARGE = 4096  # elements of a ragged input above which a request is large
TURNS = 2  # large requests whose parts are run in turns; the others wait
FEW = 8  # large requests that may be open while the time that they take is unknown
SECONDS = 3.0  # a large request may wait for earlier ones, unless the parameter max_queue_seconds is set
Found = Outputs | Exception


class Turns:
    """A lock for a session: a batch of small requests comes first, then large requests in the order of their waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._large: deque[object] = deque()  # large requests that wait
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

    def pass_on(self) -> float:
        """Give the session to waiting batches and large requests, take it back, and return the seconds in between."""
        began = time.perf_counter()
        self._give_back()
        self._take()
        return time.perf_counter() - began

    def _take(self) -> None:
        ticket = object()
        with self._changed:
            self._large.append(ticket)
            self._changed.wait_for(lambda: not (self._taken or self._small) and self._large[0] is ticket)
            self._large.popleft()
            self._taken = True

    def _give_back(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()


@dataclass(eq=False)
class LargeRequest:
    """A request of `elements` elements that are not computed yet, with the functions that compute and answer it.

    `run(goes_on)` calls `goes_on` between its parts with the elements of the last part, and ends if that returns false.
    Another request may end this request by its `name`, which the front makes; the name is empty if the request has
    none. `answer` raises nothing.
    """

    elements: int
    run: Callable[[Callable[[int], bool]], Found]
    is_cancelled: Callable[[], bool]
    answer: Callable[[Found], None]
    cancelled: Found
    name: str = ""
    ended: bool = False


class LargeRequests:
    """Runs TURNS large requests in turns, and the next ones afterwards."""

    def __init__(self, turns: Turns, seconds: float = SECONDS) -> None:
        self._turns, self._seconds = turns, seconds
        self._queue: queue.SimpleQueue[LargeRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[LargeRequest] = []
        self._rate = 0.0  # elements a second of the last request; 0: not known yet
        self._threads = [threading.Thread(target=self._run, name="large requests", daemon=True) for _ in range(TURNS)]
        for thread in self._threads:
            thread.start()

    def take(self, request: LargeRequest, timeout: float = 0.0) -> bool:
        """Queue a request whose caller waits for `timeout` seconds (0: any time), and return whether it was taken.

        One request may always wait for its turn. A further one is refused if what is left of the requests before it
        takes longer than the bound. A request is also refused if that takes longer than its caller waits.
        """
        with self._lock:
            left = sum(each.elements for each in self._open)
            before = min(left, request.elements) if len(self._open) < TURNS else left
            wait = before / self._rate if self._rate else 0.0
            too_long = wait > self._seconds if self._rate else len(self._open) >= FEW
            if 0 < timeout < wait or (self._seconds and len(self._open) > TURNS and too_long):
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
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

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
        elements, waited = request.elements, 0.0

        def goes_on(computed: int) -> bool:
            nonlocal waited
            with self._lock:
                request.elements -= computed
            waited += self._turns.pass_on()
            return not (request.ended or request.is_cancelled())

        with self._turns.large():
            if request.ended or request.is_cancelled():
                return request.cancelled
            began = time.perf_counter()
            found = request.run(goes_on)
            if not isinstance(found, Exception):
                self._rate = elements / (time.perf_counter() - began - waited)
        return found
