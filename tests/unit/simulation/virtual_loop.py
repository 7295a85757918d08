"""An event loop in virtual time: no sleeping, no sockets, no threads, and one order of events for each seed.

The loop keeps what asyncio promises: callbacks run in the order in which they became ready, timers not before their
time. The seed decides what a kernel would: when bytes arrive, in which order sockets are ready, how long a function in
a thread takes, and now and then that the process was busy for a while, so that many events are ready at once.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
import threading
import time
from asyncio import base_events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")
BEGAN = 1000.0  # of time.monotonic
YEAR_2033 = 2_000_000_000.0  # of time.time at BEGAN
MOST_ROUNDS = 500_000  # of the loop; more of them are a loop without end
THREAD_SECONDS = 0.002


class Stuck(AssertionError):
    """Nothing is left to happen, and the simulation has not ended."""


class VirtualLoop(base_events.BaseEventLoop):
    """A loop whose clock jumps to the next event. `random` has the seed's decisions."""

    def __init__(self, random: Random, stalls: float = 0.05) -> None:
        super().__init__()
        self.random = random
        self.now = BEGAN
        self.failures: list[dict[str, Any]] = []  # which asyncio would log, such as exceptions that nothing reads
        self._stalls = stalls
        self._selector = self  # BaseEventLoop calls `select` only
        self._clock_resolution = 1e-9
        self._events: list[tuple[float, int, Callable[[], None]]] = []  # of the kernel
        self._numbers = itertools.count()
        self._ready_sockets: dict[Callable[[], None], None] = {}
        self._readers: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._rounds = 0
        self.processes: dict[threading.Thread, Process] = {}
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def happen(self, delay: float, event: Callable[[], None]) -> None:
        """Have the kernel do `event` after `delay` seconds. It must run none of the program's code itself."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), event))

    def wake(self, callback: Callable[[], None]) -> None:
        """Run `callback` when sockets are polled next, in an order that the seed decides."""
        self._ready_sockets[callback] = None

    def select(self, timeout: float | None) -> list[Callable[[], None]]:
        """Let time pass until a socket or a timer is ready, and return the callbacks of ready sockets."""
        self._rounds += 1
        assert self._rounds < MOST_ROUNDS, "the loop runs without end"
        if timeout != 0 and not self._ready_sockets:
            until = [self.now + timeout] if timeout is not None else []
            until += [self._events[0][0]] if self._events else []
            if not until:
                raise Stuck
            self.now = max(self.now, min(until))
        if self.random.random() < self._stalls:
            self.now += self.random.choice((0.0001, 0.002, 0.03))
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        if not self._ready_sockets:
            return []
        ready = [*self._ready_sockets]
        self._ready_sockets.clear()
        self.random.shuffle(ready)
        return ready

    def _process_events(self, event_list: list[Callable[[], None]]) -> None:
        for callback in event_list:
            self._ready.append(asyncio.Handle(callback, (), self))  # type: ignore[attr-defined]

    def _write_to_self(self) -> None:
        """Do nothing: no other thread waits."""

    def add_reader(self, fd: Any, callback: Callable[..., None], *arguments: Any) -> None:  # type: ignore[override]
        """Note the reader of a real descriptor. `readable` calls it."""
        self._readers[fd.fileno()] = callback, arguments

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd.fileno(), None) is not None

    def readable(self, fd: Any) -> None:
        """Call the reader of `fd` when sockets are polled next."""

        def read() -> None:
            callback, arguments = self._readers.get(fd.fileno(), (lambda: None, ()))
            callback(*arguments)

        self.wake(read)

    def run_in_executor(self, executor: Any, func: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:  # type: ignore[override]
        """Call `func` here, at a time of the seed."""
        future: asyncio.Future[Result] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.happen(self.random.random() * THREAD_SECONDS, lambda: self.wake(call))
        return future


class Process:
    """Runs `function` beside a loop, as another process. It runs while the loop stands still, until time.sleep."""

    def __init__(self, loop: VirtualLoop, function: Callable[[], None]) -> None:
        self._loop, self._function = loop, function
        self._its_turn, self._loops_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._is_stopped = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        loop.processes[self._thread] = self
        self._thread.start()
        loop.wake(self._go_on)

    def stop(self) -> None:
        """End the function where it sleeps."""
        self._is_stopped = True
        if self._thread.is_alive():
            self._go_on()
        self._thread.join()

    def sleep(self, seconds: float) -> None:
        """Let the loop run for `seconds`."""
        self._loop.happen(seconds, lambda: self._loop.wake(self._go_on))
        self._loops_turn.release()
        self._its_turn.acquire()
        if self._is_stopped:
            sys.exit()

    def _go_on(self) -> None:
        if self._thread.is_alive():
            self._its_turn.release()
            self._loops_turn.acquire()

    def _run(self) -> None:
        self._its_turn.acquire()
        try:
            with suppress(SystemExit):  # `stop`
                self._function()
        except Exception as error:
            self.error = error
        finally:
            self._loops_turn.release()


@contextmanager
def virtual_clocks(loop: VirtualLoop) -> Iterator[None]:
    """A context in which the clocks of `time` are the loop's. The code under test calls them by their module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "perf_counter", loop.time)
        patch.setattr(time, "time", lambda: YEAR_2033 + loop.now - BEGAN)
        patch.setattr(time, "time_ns", lambda: int((YEAR_2033 + loop.now - BEGAN) * 10**9))
        patch.setattr(time, "sleep", lambda seconds: loop.processes[threading.current_thread()].sleep(seconds))
        patch.setattr("random.uniform", loop.random.uniform)
        yield


def simulate(loop: VirtualLoop, main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end in virtual time, and fail if it leaves tasks or unread exceptions behind."""
    with virtual_clocks(loop):
        asyncio.set_event_loop(None)
        task = loop.create_task(main)
        try:
            result = loop.run_until_complete(task)
            loop.set_exception_handler(lambda *_: None)  # of the parts' own tasks without end
            for left in asyncio.all_tasks(loop):
                left.cancel()
            loop.run_until_complete(asyncio.sleep(0.01))
        finally:
            for process in loop.processes.values():
                process.stop()
            loop.close()
    return result
