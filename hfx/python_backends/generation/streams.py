"""Pieces of text for a caller who waits in a thread or in an event loop.

What a request does is written once, as a script (waits.py). A TextStream runs a script and waits in the caller's way,
or has itself called again by one who waits for many.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from .results import Piece, merged
from .waits import PENDING, Caller, Script, Wait


class TextStream:
    """The pieces of a request's texts, as they come: iterate it, with `for` or `async for`.

    Whoever leaves early (`close`, the end of a `with` block, a cancelled task, forgetting it) cancels the request.
    Failures of the engine are raised as its EngineError. Not for several threads at a time, but for `cancel`.
    """

    def __init__(self, script: Script, cancel: Callable[[], None]) -> None:
        self._script = script
        self._cancel = cancel
        self._wait: Wait | None = None

    def cancel(self) -> None:
        """End the request soon: its texts end where they are, with the reason "cancelled". From any thread."""
        self._cancel()

    def close(self) -> None:
        """Cancel what is left and be done with it."""
        self._cancel()  # before a script that has not begun forgets its request
        self._script.close()

    def poll(self, caller: Caller) -> Piece | None:
        """The next piece, or None if it is not there yet: `caller` is told when to poll again. Raises StopIteration."""
        step, self._wait = self._wait or next(self._script), None
        while not isinstance(step, Piece):
            try:
                answer = step.soon(caller)
            except BaseException as error:
                step = self._script.throw(error)
                continue
            if answer is PENDING:
                self._wait = step
                return None
            step = self._script.send(answer)
        return step

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


def gathered(script: Script) -> Script:
    """The pieces of a script with one text as a single one, at its end."""
    pieces: list[Piece] = []
    try:
        step = next(script)
        while True:
            if isinstance(step, Piece):
                pieces.append(step)
                step = next(script)
                continue
            try:
                answer = yield step
            except Exception as error:
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration:
        yield merged(pieces)
    finally:
        script.close()
