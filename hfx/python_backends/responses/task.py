"""One request on its way: opened in a pool, its text made piece by piece, and cancelled by whoever may.

Owns what becomes of it in each case, so that its caller gets one end, whatever happens. Knows neither Triton nor which
thread calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..engine.errors import DeadlineExceeded, EngineError
from ..generation.results import Piece
from ..generation.streams import TextStream
from ..generation.waits import Caller
from .outbox import Reply

Made = tuple[Reply, list[Piece], Exception | None]

# The engine ends what is late. A request that it does not have (a long text that is still divided) ends so much later.
GRACE_SECONDS = 0.5


class Task:
    """A request; `open_stream` submits it.

    `ended` is called once, with its error, when nothing of it is left to be done; then it is `done`.
    """

    def __init__(
        self,
        reply: Reply,
        open_stream: Callable[[], TextStream],
        deadline: float | None,
        ended: Callable[[Task, Exception | None], None],
    ) -> None:
        self.reply = reply
        self.done = False
        self._open_stream = open_stream
        self._deadline = deadline
        self._ended = ended
        self._stream: TextStream | None = None
        self._cancelled = False

    @property
    def over(self) -> bool:
        """Whether its caller has all."""
        return self.reply.over

    def open(self, caller: Caller) -> Made | None:
        """Submit the request, for `caller` to be told of it: its error, if it is refused."""
        self._caller = caller
        if self.over:  # its deadline passed while it waited here
            return self._end([], None)
        try:
            stream = self._open_stream()
        except Exception as error:
            return self._end([], error)
        self._stream = stream
        if self._cancelled:  # while its text was tokenized
            stream.cancel()
        return None

    def advance(self) -> Made:
        """What is there by now; `caller` is told when there may be more."""
        assert self._stream is not None
        pieces: list[Piece] = []
        try:
            while (piece := self._stream.poll(self._caller)) is not None:
                pieces.append(piece)
        except StopIteration:
            is_whole = bool(pieces and pieces[-1].finish_reason)
            return self._end(pieces, None if is_whole else EngineError("the text ended without a reason", "Report it"))
        except Exception as error:
            return self._end(pieces, error)
        return self.reply, pieces, None

    def cancel(self) -> None:
        """End it soon, also if it has not been submitted yet. From any thread."""
        if not self._cancelled:
            self._cancelled = True
            if self._stream is not None:
                self._stream.cancel()

    def watch(self) -> Made | None:
        """Cancel it if its caller has left; its error, if it should have ended long ago."""
        if self.reply.channel.left():
            self.cancel()
        if self._deadline is None or time.monotonic() < self._deadline + GRACE_SECONDS:
            return None
        self.cancel()
        return self.reply, [], DeadlineExceeded()

    def _end(self, pieces: list[Piece], error: Exception | None) -> Made:
        self.done = True
        self._ended(self, error)
        return self.reply, pieces, error
