"""Large requests: separate threads run them in parts, in turns with each other and with batches of small requests.

Triton passes the next batch to a Python model only after `execute` has returned, so a request that takes seconds would
delay all others. A large request is therefore answered later, through its response sender. The rule by which large
requests are taken and run is that of the C++ backend (native/backend/queue.cpp, the oracle).

The tokenizing step and the net each have such threads. The tokenizing step refuses a large request before its texts
are tokenized, by what is left in both; large_loads.py passes it the load of the net.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import DeadlineExceeded, QueueFull

LARGE = 4096  # elements of a ragged input, or tokens, above which a request is large
TURNS = 2  # large requests whose parts are run in turns; the others wait
FEW = 8  # large requests that may be open while the time that they take is unknown
SECONDS = 3.0  # a large request may wait for earlier ones, unless the parameter max_queue_seconds is set


class Cancelled(Exception):
    """A request was cancelled, or ended by another request, before it was computed."""


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


@dataclass(frozen=True)
class Load:
    """The open large requests, and their elements that are not computed yet, of which `rate` are computed a second.

    A rate of 0 is not known yet.
    """

    elements: int = 0
    requests: int = 0
    rate: float = 0.0


@dataclass(eq=False)
class LargeRequest:
    """A request of `elements` elements that are not computed yet, with the functions that compute and answer it.

    `run(goes_on)` calls `goes_on` between its parts with the elements of the last part, and ends if that returns false.
    Another request may end this request by its `name`, which the front makes; the name is empty if the request has
    none. `answer` is called with the result of `run` or an exception, and raises nothing. The caller waits for
    `timeout` seconds; 0 means any time.
    """

    elements: int
    run: Callable[[Callable[[int], bool]], Any]
    is_cancelled: Callable[[], bool]
    answer: Callable[[Any], None]
    name: str = ""
    timeout: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.timeout

    def failure(self) -> Exception | None:
        """Return why the request need not be computed any more, or None."""
        if self.ended or self.is_cancelled():
            return Cancelled()
        if self.timeout > 0 and self._deadline < time.monotonic():
            return DeadlineExceeded(fix="Allow more time, or send fewer texts at a time.")
        return None


class LargeRequests:
    """Runs TURNS large requests in turns, and the next ones afterwards. Each one then goes on to a `next_step`."""

    def __init__(self, turns: Turns, seconds: float = SECONDS, next_step: Callable[[], Load] = Load) -> None:
        self._turns, self._seconds, self._next_step = turns, seconds, next_step
        self._queue: queue.SimpleQueue[LargeRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[LargeRequest] = []
        self._rate = 0.0  # of the last request
        self._threads = [threading.Thread(target=self._run, name="large requests", daemon=True) for _ in range(TURNS)]
        for thread in self._threads:
            thread.start()

    def take(self, request: LargeRequest) -> bool:
        """Queue a request, and return whether it was taken.

        One request may always wait for its turn. A further one is refused if what is left of the requests before it,
        here and in the next step, takes longer than the bound. A request is also refused if that takes longer than its
        caller waits.
        """
        next_step = self._next_step()
        with self._lock:
            own = self._load()
            count = own.requests + next_step.requests
            most = request.elements if count < TURNS else None
            waits = [_seconds(own, most), _seconds(Load(own.elements + next_step.elements, 0, next_step.rate), most)]
            wait = max(waits)
            too_long = wait > self._seconds if own.rate or next_step.rate else count >= FEW
            if 0 < request.timeout < wait or (self._seconds and count > TURNS and too_long):
                return False
            self._open.append(request)
        self._queue.put(request)
        return True

    def load(self) -> Load:
        """Return the load of the requests that are open now."""
        with self._lock:
            return self._load()

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

    def _load(self) -> Load:
        return Load(sum(each.elements for each in self._open), len(self._open), self._rate)

    def _run(self) -> None:
        while self._answer(self._queue.get()):
            pass

    def _answer(self, request: LargeRequest | None) -> bool:
        """Run and answer a request; return false at the end. Keeps no reference: Triton's objects must be freed."""
        if request is None:
            return False

        try:
            result = self._result(request)
        except BaseException as error:  # a panic of a library is not an Exception; later requests need their answers
            result = RuntimeError(f"{type(error).__name__}: {error}")
        with self._lock:
            self._open.remove(request)
        request.answer(result)
        return True

    def _result(self, request: LargeRequest) -> Any:
        elements, waited, failure = request.elements, 0.0, None

        def goes_on(computed: int) -> bool:
            nonlocal waited, failure
            with self._lock:
                request.elements -= computed
            waited += self._turns.pass_on()
            failure = failure or request.failure()
            return failure is None

        with self._turns.large():
            if failure := request.failure():
                return failure
            began = time.perf_counter()
            result = request.run(goes_on)
            if not isinstance(result, Exception):
                self._rate = elements / (time.perf_counter() - began - waited)
        return failure or result


def refusal() -> QueueFull:
    """Return the error of a large request that was not taken."""
    return QueueFull("Large requests before this one take too long", "Send fewer texts at a time, or try again later.")


def _seconds(load: Load, most: int | None) -> float:
    """Return the time that a load takes, or `most` of its elements; 0 if the rate is not known."""
    elements = load.elements if most is None else min(load.elements, most)
    return elements / load.rate if load.rate else 0.0
