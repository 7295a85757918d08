"""A request from its tensors to its last response, and the registry that cancels requests by their ids.

Whatever happens, its caller gets one end. Which values its fields may have is decided in `generation`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..engine.errors import DeadlineExceeded, EngineError, InvalidRequest
from ..generation.prompts import refuse_huge
from ..generation.results import Piece
from ..generation.streams import TextStream, Waker
from .response_writer import Reply, Update

LISTS = ("stop_words",)
EARLY_STOPPING = {"true": True, "false": False}  # the third value is "never"
DECODED = 2**16  # bytes of a text up to which it is decoded here; of a longer one, only the part that is read
# The engine ends what is late. A request that it does not have (a long text that is still divided) ends so much later.
GRACE_SECONDS = 0.5


@dataclass(frozen=True)
class GenerateRequest:
    """`fields` are those of TextGenerator, `deadline` is in seconds of `time.monotonic`.

    `cancels` is the id of the requests to be cancelled, empty where this is a request for a text.
    """

    text: str | bytes
    fields: dict[str, Any]
    streams: bool
    deadline: float | None
    cancels: str


def parse_request(tensors: Iterable[tuple[str, list[Any]]]) -> GenerateRequest:
    """The request in the tensors (name, values; texts as bytes) that came just now.

    Raises InvalidRequest, and DoesNotFit for a text that is too large to be looked at.
    """
    fields = {name: _value(name, values) for name, values in tensors}
    cancels = fields.pop("cancel_request", "")
    if "text_input" not in fields and not cancels:
        raise InvalidRequest("text_input", None, "one text")
    text, streams = fields.pop("text_input", ""), fields.pop("stream", False)
    refuse_huge(text)
    deadline = _deadline(fields.pop("timeout_ms", None))
    early = fields.get("early_stopping")
    if early is not None:
        fields["early_stopping"] = EARLY_STOPPING.get(early, early)
    return GenerateRequest(text, fields, streams, deadline, cancels)


def _deadline(timeout: int | None) -> float | None:
    if timeout is None:
        return None
    if timeout < 1:
        raise InvalidRequest("timeout_ms", timeout, "milliseconds, at least 1")
    return time.monotonic() + timeout / 1000


def _value(name: str, values: list[Any]) -> Any:
    if name in LISTS:
        return [_decoded(name, value) for value in values]
    if len(values) != 1:
        raise InvalidRequest(name, values[:8], "one value")
    return _decoded(name, values[0])


def _decoded(name: str, value: Any) -> Any:
    if not isinstance(value, bytes) or (name == "text_input" and len(value) > DECODED):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, value[:40], f"UTF-8; {error.reason} at byte {error.start}") from None


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
