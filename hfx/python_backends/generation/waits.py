"""What the script of a request waits for, and the three ways of waiting: in a thread, in an event loop, or not at all.

A script is a generator that yields pieces of text and waits; its runner sends it what it waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, Union

from ..engine.errors import EngineClosed
from ..engine.handle import Handle, Listener
from ..engine.request import Completion, Event
from .results import Piece

Result = TypeVar("Result")

PENDING = object()  # the answer that is not there yet


@dataclass(frozen=True)
class Caller:
    """Who does not wait: `listener` is told when to ask again, `pool` takes work that takes a while."""

    listener: Listener
    pool: Executor


class Wait(Protocol):
    """Something that a script waits for; the script is sent what it was."""

    def now(self) -> Any:
        """Wait in this thread."""

    async def later(self) -> Any:
        """Wait in this event loop."""

    def soon(self, caller: Caller) -> Any:
        """Don't wait: PENDING, and the caller is told when to ask again."""


Script = Generator[Union[Wait, Piece], Any, None]


class NextEvent:
    """The next event of a request, each time that it is waited for."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._events: Iterator[Event] | None = None
        self._later: AsyncIterator[Event] | None = None
        self._unread: Iterator[Event] = iter(())
        self._listens = False

    def now(self) -> Event:
        """See Wait. Raises the request's EngineError."""
        self._events = self._events or iter(self._handle)
        for event in self._events:
            return event
        raise _ended()

    async def later(self) -> Event:
        """See Wait."""
        self._later = self._later or self._handle.__aiter__()
        async for event in self._later:
            return event
        raise _ended()

    def soon(self, caller: Caller) -> Any:
        """See Wait."""
        if not self._listens:
            self._handle.tell_events(caller.listener)
            self._listens = True
        for event in self._unread:
            return event
        arrived = self._handle.arrived()
        if arrived is None:
            raise _ended()
        self._unread = iter(arrived)
        return next(self._unread, PENDING)


class Completions:
    """The ends of all sequences of a request."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def now(self) -> tuple[Completion, ...]:
        """See Wait. Raises the request's EngineError."""
        return self._handle.result()

    async def later(self) -> tuple[Completion, ...]:
        """See Wait."""
        return await self._handle.whole()

    def soon(self, caller: Caller) -> Any:
        """See Wait."""
        self._handle.tell_end(caller.listener)
        return self._handle.result() if self._handle.done else PENDING


class Work(Generic[Result]):
    """A computation that an event loop must not wait for."""

    def __init__(self, compute: Callable[[], Result]) -> None:
        self._compute = compute
        self._future: Future[Result] | None = None

    def now(self) -> Result:
        """See Wait."""
        return self._compute()

    async def later(self) -> Result:
        """See Wait."""
        return await asyncio.to_thread(self._compute)

    def soon(self, caller: Caller) -> Any:
        """See Wait."""
        if self._future is None:
            self._future = caller.pool.submit(self._compute)
            self._future.add_done_callback(lambda _: caller.listener.tell([caller.listener.key]))
        return self._future.result() if self._future.done() else PENDING


def _ended() -> EngineClosed:
    return EngineClosed("the engine ended the request before its texts were complete")
