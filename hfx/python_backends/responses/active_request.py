"""One request from its submission to its last response, and the registry that cancels requests by their ids.

Whatever happens, its caller gets one end.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from ..engine.errors import DeadlineExceeded, EngineError
from ..generation.results import Piece
from ..generation.streams import TextStream, Waker
from .response_queue import Reply, Update

# The engine ends what is late. A request that it does not have (a long text that is still divided) ends so much later.
GRACE_SECONDS = 0.5


class ActiveRequest:
    """A request; `open_stream` submits it.

    `ended` is called once, with its error, when nothing of it is left to be done; then it is `done`.
    """

    def __init__(
        self,
        reply: Reply,
        open_stream: Callable[[], TextStream],
        deadline: float | None,
        ended: Callable[[ActiveRequest, Exception | None], None],
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
        return self.reply.ended

    def open(self, waker: Waker) -> Update | None:
        """Submit the request, whose news `waker` is notified of: its error, if it is refused."""
        self._waker = waker
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

    def advance(self) -> Update:
        """The pieces that are there by now; the waker is notified when there may be more."""
        assert self._stream is not None
        pieces: list[Piece] = []
        try:
            while (piece := self._stream.poll(self._waker)) is not None:
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

    def check_caller(self) -> Update | None:
        """Cancel it if its caller has left; its error, if it should have ended long ago."""
        if self.reply.channel.left():
            self.cancel()
        if self._deadline is None or time.monotonic() < self._deadline + GRACE_SECONDS:
            return None
        self.cancel()
        return self.reply, [], DeadlineExceeded()

    def _end(self, pieces: list[Piece], error: Exception | None) -> Update:
        self.done = True
        self._ended(self, error)
        return self.reply, pieces, error


Cancel = Callable[[], None]


class CancelRegistry:
    """How requests under way are cancelled, by their ids, which several may share. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancels: defaultdict[str, list[Cancel]] = defaultdict(list)

    def add(self, request_id: str, cancel: Cancel) -> None:
        """Note how a request is cancelled; one without an id can't be."""
        if request_id:
            with self._lock:
                self._cancels[request_id].append(cancel)

    def remove(self, request_id: str, cancel: Cancel) -> None:
        """Forget a request that is over."""
        with self._lock:
            others = [other for other in self._cancels.pop(request_id, ()) if other != cancel]
            if others:
                self._cancels[request_id] = others

    def cancel(self, request_id: str) -> None:
        """Cancel every request of this id, if there is one."""
        with self._lock:
            cancels = tuple(self._cancels.get(request_id, ()))
        for cancel in cancels:
            cancel()

    def __len__(self) -> int:
        with self._lock:
            return len(self._cancels)
