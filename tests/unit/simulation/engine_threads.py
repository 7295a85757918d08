"""Virtual time for the engine, whose thread is the test's own, and what other threads do in this time.

An object of Threads takes the place of the modules `time` and `threading` in the engine's modules. Whenever the
engine's thread reads its clock, runs the model, waits or releases its lock, events of other threads happen that are
due. They happen as a whole, as threads would do them that the engine's thread does not interrupt.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from hfx.python_backends.engine import core, engine, jobs

BEGAN = 1000.0
TICK = 1e-6  # seconds that reading the clock takes
PREEMPTED, SOON = 0.3, 1.0  # how often the engine's thread is preempted where an event is set, and seconds


class Threads:
    """The clock, the lock and its condition. `on_idle` is called when the engine's thread has nothing to do.

    `failure` is the first exception of an event. `is_ending` says that no thread of the program is left but the
    engine's.
    """

    def __init__(self, random: Random, on_idle: Callable[[], None]) -> None:
        self.now = BEGAN
        self.failure: BaseException | None = None
        self.is_ending = False
        self._random, self._on_idle = random, on_idle
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._locks = self._vain_waits = 0
        self._is_elsewhere = self._is_notified = self._is_waiting = False

    def at(self, delay: float, event: Callable[[], None]) -> None:
        """Have another thread do `event` after `delay` seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), event))

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def elapse(self, seconds: float) -> None:
        """Let time pass for the engine's thread."""
        if self._is_elsewhere:
            return
        until = self.now + seconds
        while not self._locks and self._events and self._events[0][0] <= until:
            self._happen()
        self.now = max(self.now, until)

    def preempt(self) -> None:
        """Now and then, let an event of another thread happen here that would be due soon."""
        soon = [event for event in self._events if event[0] < self.now + SOON]
        if soon and not (self._is_elsewhere or self._locks) and self._random.random() < PREEMPTED:
            event = self._random.choice(soon)
            self._events.remove(event)
            heapq.heapify(self._events)
            self._happen(event[2])

    @property
    def is_asleep(self) -> bool:
        """Whether the engine's thread waits and was not notified."""
        return self._is_waiting and not self._is_notified

    def monotonic(self) -> float:
        self.elapse(TICK)
        return self.now

    perf_counter = monotonic

    def Thread(self, **_: Any) -> Any:  # noqa: N802
        """Return a thread that does not run: the test calls its function."""
        return SimpleNamespace(start=lambda: None, join=lambda: None)

    def RLock(self) -> Threads:  # noqa: N802
        return self

    def Condition(self, _: Threads) -> Threads:  # noqa: N802
        return self

    def Event(self) -> Event:  # noqa: N802
        return Event(self)

    def current_thread(self) -> None:
        return None

    def enumerate(self) -> list[Any]:
        return [SimpleNamespace(daemon=False, name="main", is_alive=lambda: not self.is_ending)]

    def __enter__(self) -> None:
        self._locks += 1

    def __exit__(self, *_: object) -> None:
        self._locks -= 1
        self.elapse(0.0)

    def notify(self) -> None:
        self._is_notified = True

    def wait(self, seconds: float) -> bool:
        """Wait until `notify` is called, and a little longer. After a few waits in vain, wait for the next event."""
        self._on_idle()
        locks, self._locks, end = self._locks, 0, self.now + seconds
        self._is_waiting, self._is_notified = True, False
        if self._vain_waits > 2 and self._events:
            end = max(end, self._events[0][0] - self._random.random() * seconds)
        while not self._is_notified and self._events and self._events[0][0] <= end:
            self._happen()
        self._is_waiting = False
        self.elapse(self._random.random() * 0.001 if self._is_notified else end - self.now)
        self._locks, self._vain_waits = locks, 0 if self._is_notified else self._vain_waits + 1
        return self._is_notified

    def _happen(self, event: Callable[[], None] | None = None) -> None:
        """Do an event, or the next one at its time."""
        if event is None:
            time, _, event = heapq.heappop(self._events)
            self.now = max(self.now, time)
        self._is_elsewhere = True
        try:
            event()
        except BaseException as error:  # in a thread of its own, it would not reach the engine
            self.failure = self.failure or error
        finally:
            self._is_elsewhere = False

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the engine's modules have this clock and these threads."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (core, engine, jobs):
                patch.setattr(module, "time", self)
            for module in (engine, jobs):
                patch.setattr(module, "threading", self)
            yield


class Event:
    """An event, around whose setting other threads do what is due."""

    def __init__(self, threads: Threads) -> None:
        self._threads, self._is_set = threads, False

    def set(self) -> None:
        self._threads.preempt()
        self._is_set = True
        self._threads.preempt()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None) -> bool:
        return self._is_set
