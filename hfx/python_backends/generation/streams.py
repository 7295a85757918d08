"""Pieces of text for a thread, for an event loop, or for a thread that polls many streams.

What a request does is written once, as a script: a generator that yields pieces of text and waits, and is sent what it
waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Union

from ..engine.handle import Listener, LoopNotifier
from .results import Piece

PENDING = object()  # the answer that is not there yet

AnyFuture = Union["Future[Any]", "asyncio.Future[Any]"]


@dataclass(frozen=True)
class Waker:
    """How a stream without a piece goes on: `listener` is notified when to poll again.

    `run` starts work that takes a while elsewhere; without it, the polling thread does the work.
    """

    listener: Listener
    run: Callable[[Callable[[], Any]], AnyFuture] | None = None


# Returns what the script is sent, or PENDING: the waker is notified when to call it again. Raises what went wrong.
Wait = Callable[[Waker], Any]
Script = Generator[Union[Wait, Piece], Any, None]


def work(compute: Callable[[], Any]) -> Wait:
    """A wait for the result of a computation that an event loop must not wait for."""
    future: AnyFuture | None = None

    def poll(waker: Waker) -> Any:
        nonlocal future
        if waker.run is None:
            return compute()
        if future is None:
            future = waker.run(compute)
            future.add_done_callback(lambda _: waker.listener.notify([waker.listener.key]))
        return future.result() if future.done() else PENDING

    return poll


class TextStream:
    """The pieces of a request's texts, as they come: iterate it, with `for` or `async for`.

    Leaving it early (`close`, the end of a `with` block, a cancelled task, forgetting it) cancels the request. Failures
    of the engine are raised as its EngineError. Not for several threads at a time, but for `cancel`.
    """

    def __init__(self, script: Script, cancel: Callable[[], None]) -> None:
        self._script = script
        self._cancel = cancel
        self._wait: Wait | None = None
        self._news = threading.Event()
        self._waker = Waker(Listener(_set_all, self._news))

    def cancel(self) -> None:
        """End the request soon: its texts end where they are, with the reason "cancelled". From any thread."""
        self._cancel()

    def close(self) -> None:
        """Cancel what is left and be done with it."""
        self._cancel()  # before a script that has not begun forgets its request
        self._wait = None
        self._script.close()

    def poll(self, waker: Waker) -> Piece | None:
        """The next piece, or None if it is not there yet: `waker` is notified when to poll again.

        Raises StopIteration behind the last one.
        """
        try:
            step, self._wait = self._wait or next(self._script), None
            while not isinstance(step, Piece):
                answer = step(waker)
                if answer is PENDING:
                    self._wait = step
                    return None
                step = self._script.send(answer)
        except BaseException:
            self.close()
            raise
        return step

    def __del__(self) -> None:
        self._cancel()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> Piece:
        try:
            while (piece := self.poll(self._waker)) is None:
                self._news.wait()
                self._news.clear()
        except KeyboardInterrupt:
            self.close()
            raise
        return piece

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> Piece:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        waker = Waker(Listener(LoopNotifier(loop), news), partial(loop.run_in_executor, None))
        try:
            while (piece := self.poll(waker)) is None:
                await news.wait()
                news.clear()
        except StopIteration:
            raise StopAsyncIteration from None
        except asyncio.CancelledError:
            self.close()
            raise
        return piece

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> TextStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


def _set_all(events: list[threading.Event]) -> None:
    for event in events:
        event.set()
