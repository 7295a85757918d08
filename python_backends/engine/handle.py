"""The caller's end of a request: an iterator of events, from any thread or event loop.

Owns the hand-over between the scheduler's thread and the caller's; knows nothing of models and steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from .errors import EngineError
from .request import Completion, Event, Request

Events = tuple[Event, ...]
Waker = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Handle:
    """What `Engine.submit` returns.

    Iterate it (`for` or `async for`, one of them, once) for the request's events as they come: a Token for each new
    token of greedy decoding and sampling, and a Completion for each sequence, the last event among them. `result()`
    waits for the completions. Both raise the request's EngineError if it failed, the iterators after the events before
    it. As a context manager it cancels a request that is not done at the end of the block.
    """

    def __init__(self, request: Request, cancel: Callable[[], None]) -> None:
        self.request = request
        self._cancel = cancel
        self._arrived: queue.SimpleQueue[Events | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._completions: list[Completion] = []
        self._failure: EngineError | None = None
        self._waker: Waker | None = None

    @property
    def done(self) -> bool:
        """Whether the request is over, though its events may not have been read."""
        return self._done.is_set()

    def cancel(self) -> None:
        """End the request soon: its sequences end with the reason "cancelled". From any thread, any number of times."""
        if not self.done:
            self._cancel()

    def result(self, timeout: float | None = None) -> tuple[Completion, ...]:
        """All completions in order of their index. Raises TimeoutError after `timeout` seconds, or the failure."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the request is not done after {timeout} s")
        if self._failure is not None:
            raise self._failure
        return tuple(sorted(self._completions, key=lambda completion: completion.index))

    def __iter__(self) -> Iterator[Event]:
        while (events := self._arrived.get()) is not None:
            yield from events
        self._end()

    async def __aiter__(self) -> AsyncIterator[Event]:
        news = asyncio.Event()
        self._waker = (asyncio.get_running_loop(), news)
        while True:
            try:
                events = self._arrived.get_nowait()
            except queue.Empty:
                await news.wait()
                news.clear()
                continue
            if events is None:
                break
            for event in events:
                yield event
        self._end()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def take(self, events: Events, over: bool, failure: EngineError | None) -> Waker | None:
        """The engine's side: more events, whether they are the last, and whom to wake."""
        self._completions += [event for event in events if isinstance(event, Completion)]
        if events:
            self._arrived.put(events)
        if over:
            self._failure = failure
            self._cancel = _nothing  # which held the job, which holds the handle
            self._done.set()
            self._arrived.put(None)
        return self._waker

    def _end(self) -> None:
        self._arrived.put(None)  # for whoever iterates again
        if self._failure is not None:
            raise self._failure


@dataclass(frozen=True)
class Delivery:
    """What a handle is told after a step; where `over`, it is the last, and `failure` says why if it went wrong."""

    handle: Handle
    events: Events
    over: bool = False
    failure: EngineError | None = None


def deliver(deliveries: Iterable[Delivery]) -> None:
    """Tell each handle, with one wake-up for each event loop."""
    wakers: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for delivery in deliveries:
        waker = delivery.handle.take(delivery.events, delivery.over, delivery.failure)
        if waker is not None:
            wakers.setdefault(waker[0], []).append(waker[1])
    for loop, waiting in wakers.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_wake, waiting)


def _nothing() -> None:
    pass


def _wake(waiting: list[asyncio.Event]) -> None:
    for news in waiting:
        news.set()
