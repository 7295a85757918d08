"""The pieces of a call for a thread, for an event loop, or for a thread that polls many streams."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Union

from ..engine.handle import Handle, Listener, LoopNotifier
from .pieces import Piece, Pieces

AnyFuture = Union["Future[Any]", "asyncio.Future[Any]"]
# Starts work that takes a while elsewhere.
Start = Callable[[Callable[[], None]], AnyFuture]


class TextStream:
    """The pieces of a request's texts, as they come: iterate it, with `for` or `async for`.

    Leaving it early (`close`, the end of a `with` block, a cancelled task, forgetting it) cancels the request. Failures
    of the engine are raised as its EngineError. Not for several threads at a time, but for `cancel`.

    `open_pieces` submits the request, and returns the pieces. It gets the stream as a weak reference, since a stream
    that is forgotten must be freed at once. A thread that polls many streams sets the `listener` of each, which is
    notified when to poll again, and where work that takes a while is to be done (`start`; None: in `poll`).
    """

    def __init__(self, open_pieces: Callable[[TextStream], Pieces]) -> None:
        self.cancelled = threading.Event()
        self.start: Start | None = None
        self._news = threading.Event()
        self._own_listener = self.listener = Listener(_set_all, self._news)
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._lock = threading.Lock()  # of `cancelled` and `_handles`
        self._pieces = open_pieces(weakref.proxy(self))

    def add(self, handle: Handle) -> None:
        """Cancel `handle` too when the stream is cancelled, or now if it has been."""
        with self._lock:
            self._handles.add(handle)
            is_cancelled = self.cancelled.is_set()
        if is_cancelled:
            handle.cancel()

    def cancel(self) -> None:
        """End the request soon: its texts end where they are, with the reason "cancelled". From any thread."""
        with self._lock:
            self.cancelled.set()
            handles = tuple(self._handles)
        for handle in handles:
            handle.cancel()

    def close(self) -> None:
        """Cancel what is left and be done with it."""
        self.cancel()  # also what was submitted for pieces that were never read
        self._pieces.close()

    def poll(self) -> Piece | None:
        """The next piece, or None if it is not there yet: the listener is notified when to poll again.

        Raises StopIteration behind the last one.
        """
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.cancel()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> Piece:
        self.listener, self.start = self._own_listener, None
        try:
            while (piece := self.poll()) is None:
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
        self.listener, self.start = Listener(LoopNotifier(loop), news), partial(loop.run_in_executor, None)
        try:
            while (piece := self.poll()) is None:
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


def compute(stream: TextStream, work: Callable[[], None]) -> Pieces:
    """No pieces until `work` is done: elsewhere, where the stream is polled. Raises what it raises."""
    if stream.start is None:
        work()
        return
    listener, future = stream.listener, stream.start(work)
    future.add_done_callback(lambda _: listener.notify([listener.key]))
    while not future.done():
        yield None
    future.result()


def _set_all(events: list[threading.Event]) -> None:
    for event in events:
        event.set()
