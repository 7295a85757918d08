"""The caller's end of a request: its events, for any thread or event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .errors import EngineError
from .request import Event

Events = tuple[Event, ...]


@dataclass(frozen=True)
class Listener:
    """What a reader is notified by: `notify` is called with the keys of all listeners that have news, once a step.

    The engine's thread calls it, so it must only hand over.
    """

    notify: Callable[[list[Any]], None]
    key: Hashable


class Handle:
    """What `Engine.submit` returns.

    Iterate it for the request's events as they come: one for each new token of greedy decoding and sampling, and one
    for the end of each sequence. `result()` waits for the ends. Both raise the request's EngineError if it failed, the
    iterator after the events before it. Set `on_events` to be notified of new events, `on_end` of the request's end;
    then look for those that were there before, by `poll()` and `done`.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._arrived: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._ends: list[Event] = []
        self._failure: EngineError | None = None
        self.on_events: Listener | None = None
        self.on_end: Listener | None = None

    @property
    def done(self) -> bool:
        """Whether the request is over, though its events may not have been read."""
        return self._done.is_set()

    def cancel(self) -> None:
        """End the request soon: its sequences end with the reason "cancelled". From any thread, any number of times."""
        if not self.done:
            self._cancel()

    def result(self, timeout: float | None = None) -> tuple[Event, ...]:
        """The ends of all sequences, by index. Raises TimeoutError after `timeout` seconds, or the failure."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the request is not done after {timeout} s")
        if self._failure is not None:
            raise self._failure
        return tuple(sorted(self._ends, key=lambda event: event.index))

    def poll(self) -> Events | None:
        """New events, without waiting, which may be none; None when they are at their end.

        Raises the failure there.
        """
        try:
            events = self._arrived.get_nowait()
        except queue.Empty:
            return ()
        if events is None:
            self._end()
        return events

    def __iter__(self) -> Iterator[Event]:
        while (events := self._arrived.get()) is not None:
            yield from events
        self._end()

    def deliver(self, events: Events, over: bool, failure: EngineError | None = None) -> tuple[Listener | None, ...]:
        """The engine's side: more events, whether they are the last, and why it failed. Returns the listeners."""
        self._ends += [event for event in events if event.finish_reason]
        if events:
            self._arrived.put(events)
        if not over:
            return (self.on_events,)
        self._failure = failure
        self._cancel = _nothing  # which held the job, which holds the handle
        self._done.set()
        self._arrived.put(None)
        listeners = (self.on_events, self.on_end)  # only now: a reader that has not seen the end has set one
        self.on_events = self.on_end = None  # whose keys may hold the reader
        return listeners

    def _end(self) -> None:
        self._arrived.put(None)  # for the next iteration
        if self._failure is not None:
            raise self._failure


def notify_all(listeners: Iterable[Listener | None]) -> None:
    """Notify all that there are, with one call for each event loop or thread."""
    news: dict[Callable[[list[Any]], None], list[Any]] = {}
    for listener in listeners:
        if listener is not None:
            news.setdefault(listener.notify, []).append(listener.key)
    for notify, keys in news.items():
        notify(keys)


@dataclass(frozen=True)
class LoopNotifier:
    """Sets events of an event loop from another thread; equal for the same loop."""

    loop: asyncio.AbstractEventLoop

    def __call__(self, events: list[Any]) -> None:
        """Set `events`."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for them
            self.loop.call_soon_threadsafe(_set, events)


def _nothing() -> None:
    pass


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
