"""The two ways of waiting: by blocking the thread, and by asyncio.

All that is not waiting is written once, as coroutines. Those of the blocking client wait inside and are driven to their
end by `run`; many at a time are carried out by a crew, of threads here and of tasks there. This file must not know what
is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from hfx.errors import RequestCancelled

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]
Done = TypeVar("Done", covariant=True)
Cancel = Callable[[], Any]


class Running(Protocol[Done]):
    """Work under way."""

    def done(self) -> bool: ...  # noqa: D102

    def result(self) -> Done: ...  # noqa: D102


class Crew(Protocol):
    """Those who carry out work at the same time."""

    def start(self, work: Work[Result]) -> Running[Result]:
        """Begin WORK."""

    async def first(self, running: Collection[Running[Any]]) -> None:
        """Wait until one of RUNNING is done."""

    async def dismiss(self) -> None:
        """End all that is under way."""


class Waiting(Protocol):
    """A way of waiting."""

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""

    def crew(self, size: int) -> Crew:
        """A crew that does up to SIZE works at a time."""


def run(coroutine: Coroutine[Any, Any, Result] | Generator[Any, Any, Result]) -> Result:
    """What a coroutine returns whose waits all block: it ends at its first step."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("a blocking transport has given the control away")


class Blocking:
    """Waiting by blocking the thread."""

    async def sleep(self, seconds: float) -> None:
        """Wait so long; raises RequestCancelled if this thread's crew is dismissed meanwhile."""
        crew = _crew.get()
        if crew is None:
            time.sleep(seconds)
        elif crew.dismissed.wait(seconds):
            raise RequestCancelled("The request was given up before it was sent again.")

    def crew(self, size: int) -> Crew:
        """A crew of up to SIZE threads."""
        return Threads(size)


class Threads:
    """A crew of threads. Whoever waits in one makes it known how to end that (`interruptible`)."""

    def __init__(self, size: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.dismissed = threading.Event()
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="hfx-client")
        self._waits: dict[int, Cancel] = {}
        self._lock = threading.Lock()

    def start(self, work: Work[Result]) -> Running[Result]:
        """Begin WORK in a thread."""
        return self._pool.submit(self._carry_out, work)

    async def first(self, running: Collection[Any]) -> None:
        """Wait until one of RUNNING is done."""
        from concurrent.futures import FIRST_COMPLETED, wait

        wait(running, return_when=FIRST_COMPLETED)

    async def dismiss(self) -> None:
        """End all that is under way, without waiting for the threads."""
        with self._lock:
            self.dismissed.set()
            waits = tuple(self._waits.values())
        for cancel in waits:
            cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def knows(self, cancel: Cancel) -> Iterator[None]:
        """Whoever is dismissed meanwhile is cancelled."""
        with self._lock:
            self._waits[id(cancel)] = cancel
        if self.dismissed.is_set():
            cancel()
        try:
            yield
        finally:
            with self._lock:
                del self._waits[id(cancel)]

    def _carry_out(self, work: Work[Result]) -> Result:
        _crew.set(self)
        return run(work())


_crew: ContextVar[Threads | None] = ContextVar("crew", default=None)


@contextmanager
def interruptible(cancel: Cancel) -> Iterator[None]:
    """A wait of this thread that CANCEL ends: called when the crew is dismissed, and after an interruption (Ctrl-C)."""
    crew = _crew.get()
    try:
        if crew is None:
            yield
        else:
            with crew.knows(cancel):
                yield
    except BaseException:
        cancel()
        raise


class Asynchronous:
    """Waiting by asyncio."""

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        import asyncio

        await asyncio.sleep(seconds)

    def crew(self, size: int) -> Crew:
        """A crew of tasks; how many at a time is up to who starts them."""
        return Tasks()


class Tasks:
    """A crew of asyncio's tasks."""

    def __init__(self) -> None:
        self._tasks: set[Any] = set()

    def start(self, work: Work[Result]) -> Running[Result]:
        """Begin WORK in a task."""
        import asyncio

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def first(self, running: Collection[Any]) -> None:
        """Wait until one of RUNNING is done."""
        import asyncio

        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    async def dismiss(self) -> None:
        """Cancel all that is under way, and wait until it has ended."""
        import asyncio

        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
