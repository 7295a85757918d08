"""Pieces of text for a caller who waits in a thread or in an event loop.

What a request does is written once, as a script: a generator that yields pieces, and what it must wait for. A
TextStream runs a script and waits in the caller's way. Knows no tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, Union

from ..engine.errors import EngineClosed
from ..engine.handle import Handle
from ..engine.request import Completion, Event
from .results import Piece

Result = TypeVar("Result")


class Wait(Protocol):
    """Something that a script waits for; the script is sent what it was."""

    def now(self) -> Any:
        """Wait in this thread."""

    async def later(self) -> Any:
        """Wait in this event loop."""


Script = Generator[Union[Wait, Piece], Any, None]


class NextEvent:
    """The next event of a request, each time that it is waited for."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._events: Iterator[Event] | None = None
        self._later: AsyncIterator[Event] | None = None

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


class Completions:
    """The ends of all sequences of a request."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def now(self) -> tuple[Completion, ...]:
        """See Wait. Raises the request's EngineError."""
        return self._handle.result()

    async def later(self) -> tuple[Completion, ...]:
        """See Wait."""
        found = [event async for event in self._handle if isinstance(event, Completion)]
        return tuple(sorted(found, key=lambda completion: completion.index))


class Work(Generic[Result]):
    """A computation that an event loop must not wait for."""

    def __init__(self, compute: Callable[[], Result]) -> None:
        self._compute = compute

    def now(self) -> Result:
        """See Wait."""
        return self._compute()

    async def later(self) -> Result:
        """See Wait."""
        return await asyncio.to_thread(self._compute)


class TextStream:
    """The pieces of a request's texts, as they come: iterate it, with `for` or `async for`.

    Whoever leaves early (`close`, the end of a `with` block, a cancelled task, forgetting it) cancels the request.
    Failures of the engine are raised as its EngineError. Not for several threads at a time, but for `cancel`.
    """

    def __init__(self, script: Script, cancel: Callable[[], None]) -> None:
        self._script = script
        self._cancel = cancel

    def cancel(self) -> None:
        """End the request soon: its texts end where they are, with the reason "cancelled". From any thread."""
        self._cancel()

    def close(self) -> None:
        """Cancel what is left and be done with it."""
        self._cancel()  # before a script that has not begun forgets its request
        self._script.close()

    def __del__(self) -> None:
        self._cancel()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> Piece:
        step = next(self._script)
        while not isinstance(step, Piece):
            try:
                answer = step.now()
            except BaseException as error:
                step = self._script.throw(error)
            else:
                step = self._script.send(answer)
        return step

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> Piece:
        try:
            step = next(self._script)
            while not isinstance(step, Piece):
                try:
                    answer = await step.later()
                except BaseException as error:
                    step = self._script.throw(error)
                else:
                    step = self._script.send(answer)
        except StopIteration:
            raise StopAsyncIteration from None
        return step

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> TextStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended() -> EngineClosed:
    return EngineClosed("the engine ended the request before its texts were complete")
