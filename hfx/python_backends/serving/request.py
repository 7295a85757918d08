"""GenerateRequest, from its tensors to its last response, and the registry that cancels requests by their ids.

A caller always gets exactly one last response. The values of the settings are checked in `generation`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Protocol

import numpy as np

from ..checks import boolean, filled, parse_parameters
from ..engine.generation_settings import LISTS, STRUCTURE, from_text, of_scope
from ..engine.jobs import Job, Listener
from ..errors import DeadlineExceeded, EngineError, InvalidRequest, failure_of
from ..generation.pieces import Piece
from ..generation.prompts import refuse_huge
from ..generation.streams import OpenPieces, Start, TextStream

FORMS = frozenset(of_scope(STRUCTURE))
DECODED = 2**16  # bytes: a longer text is decoded later, and only the part that the model reads
# The engine ends requests at their deadlines. A request that is not in the engine yet (its text is long) is ended this
# much after its deadline.
GRACE_SECONDS = 0.5
# Output -> the input that requests it, as Triton's OpenAI frontend does.
COUNTS = {"num_input_tokens": "return_num_input_tokens", "num_output_tokens": "return_num_output_tokens"}

Tensors = Iterable["tuple[str, list[Any]]"]  # names and values; texts as bytes


class Channel(Protocol):
    """The connection to the caller of a request. Each call communicates with another process."""

    def send(self, outputs: Mapping[str, Any], final: bool) -> None:
        """Send a response. `final` says whether it is the last one."""

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response; `code` is a name in pb.TritonError."""

    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled the request or disconnected."""


# Pieces of a request, and the error after them, if it failed.
Update = tuple[list[Piece], Optional[Exception]]


class GenerateRequest(TextStream):
    """A request for a text, which is also the stream of its pieces, or a request to cancel other requests.

    `settings` are keyword arguments of TextGenerator's methods. `deadline` is a time of time.monotonic. `cancels` is
    the id of the requests to cancel; empty in a request for a text. `trace` is the trace context (traces.py); empty if
    the request is not traced. `traced` are the jobs of a traced request. `done` says that `advance` has returned the
    last piece. Only ResponseWriter changes `unsent`, `error`, `begun` (the first piece was put), `queued` and `ended`
    (no more pieces are added).
    """

    def __init__(self, channel: Channel, id: str = "", trace: str = "") -> None:
        super().__init__()
        self.channel = channel
        self.id = id
        self.trace = trace
        self.traced: list[Job] = []
        self.text: str | bytes = ""
        self.settings: dict[str, Any] = {}
        self.streams = False
        self.deadline: float | None = None
        self.cancels = ""
        self.unsent: list[Piece] = []
        self.error: Exception | None = None
        self.begun = self.ended = self.queued = self.done = False
        self._counts: tuple[str, ...] = ()
        self._sent_tokens = 0
        self._answer: Update | None = None

    def parse(self, tensors: Tensors, parameters: str = "") -> None:
        """Read the tensors and Triton's request parameters (a JSON object). `timeout_ms` counts from now.

        Raises InvalidRequest, and DoesNotFit for a huge text.
        """
        fields = _fields(tensors, parameters)
        self.cancels = filled("cancel_request", fields.pop("cancel_request")) if "cancel_request" in fields else ""
        if "text_input" not in fields and not self.cancels:
            raise InvalidRequest("text_input", None, "one text")
        self.text = fields.pop("text_input", "")
        refuse_huge(self.text)
        self.streams = boolean("stream", fields.pop("stream", False))
        self.deadline = _deadline(fields.pop("timeout_ms", None))
        self._counts = tuple(output for output, name in COUNTS.items() if boolean(name, fields.pop(name, False)))
        self.settings = {name: from_text(name, value) for name, value in fields.items()}

    def add(self, job: Job) -> None:
        """Add a job to the stream (see TextStream.add). Keep the job of a traced request, because it has the times."""
        super().add(job)
        if self.trace:
            self.traced.append(job)

    @property
    def is_structured(self) -> bool:
        """Whether the request wants structured output, whose grammar may have to be compiled."""
        return not FORMS.isdisjoint(self.settings)

    @property
    def is_answered(self) -> bool:
        """Whether `answer` was called, so that the request need not be submitted."""
        return self._answer is not None

    def answer(self, pieces: list[Piece], error: Exception | None = None) -> None:
        """End the request with these pieces or this error, without the engine."""
        self._answer = pieces, error

    def submit(self, opener: Opener, listener: Listener, start: Start) -> None:
        """Submit the request. `listener` is notified when `advance` has pieces; `start` runs slow work in a thread."""
        if self.ended:  # the deadline passed before the request was opened
            self.answer([])
            return
        self.listener, self.start = listener, start
        try:
            self.open(opener(self))
        except BaseException as error:
            self.answer([], failure_of(error))

    def advance(self) -> Update:
        """Return the pieces that are new since the last call, and the error after them, if there is one."""
        pieces, error = self._answer or ([], None)
        self.done = self.is_answered
        try:
            while not self.done and (piece := self.poll()) is not None:
                pieces.append(piece)
        except StopIteration:
            self.done = True
            if not (pieces and pieces[-1].finish_reason):
                error = EngineError("the text ended without a reason", "Report it")
        except BaseException as failure:
            self.done, error = True, failure_of(failure)
        if self.done:
            self.close()
            _drop_tracebacks(error)
        return pieces, error

    def check_caller(self) -> Exception | None:
        """Cancel the request if its caller has cancelled it.

        If its deadline is long past, cancel it and return the error.
        """
        if self.channel.is_cancelled():
            self.cancel()
        if self.deadline is None or time.monotonic() < self.deadline + GRACE_SECONDS:
            return None
        self.cancel()
        return DeadlineExceeded()

    def outputs(self, piece: Piece) -> dict[str, Any]:
        """Return the output tensors of the next response: the piece's tensors, and the requested counts.

        `num_output_tokens` counts the tokens since the last response, as callers of that output add them up.
        """
        outputs = piece.outputs()
        counts = {"num_input_tokens": piece.input_tokens, "num_output_tokens": piece.output_tokens - self._sent_tokens}
        self._sent_tokens = piece.output_tokens
        return {**outputs, **{name: counts[name] for name in self._counts}}


Opener = Callable[[GenerateRequest], OpenPieces]  # opens the stream of a request


class CancelRegistry:
    """The requests that can be cancelled, by id. Several requests may share an id. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: defaultdict[str, list[GenerateRequest]] = defaultdict(list)

    def add(self, request: GenerateRequest) -> None:
        """Add a request. Without an id it can't be cancelled, and is not added."""
        if request.id:
            with self._lock:
                self._requests[request.id].append(request)

    def remove(self, request: GenerateRequest) -> None:
        """Remove a request that has ended."""
        with self._lock:
            others = [other for other in self._requests.pop(request.id, ()) if other is not request]
            if others:
                self._requests[request.id] = others

    def cancel(self, request_id: str) -> None:
        """Cancel all requests with this id, if there are any."""
        with self._lock:
            requests = tuple(self._requests.get(request_id, ()))
        for request in requests:
            request.cancel()

    def __len__(self) -> int:
        with self._lock:
            return len(self._requests)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes, whose frames keep the request alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _fields(tensors: Tensors, parameters: str) -> dict[str, Any]:
    """Return the values of the tensors and of the parameters by name. Raises InvalidRequest."""
    fields = {name: _value(name, values) for name, values in tensors}
    try:
        settings = parse_parameters(parameters)
    except ValueError as error:
        raise InvalidRequest("parameters", parameters, f"a JSON object ({error})") from None
    for name, value in settings.items():
        value = [value] if name in LISTS else value  # Triton has no parameters that are lists
        if fields.setdefault(name, value) != value:
            raise InvalidRequest(name, value, f"{fields[name]!r}, as its tensor is, or only one of the two may be sent")
    return fields


def _deadline(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if type(timeout) is not int or timeout < 1:
        raise InvalidRequest("timeout_ms", timeout, "a whole number of milliseconds of at least 1")
    return time.monotonic() + timeout / 1000


def _value(name: str, values: list[Any]) -> Any:
    if name in LISTS:
        return [_decoded(name, value) for value in values]
    if len(values) != 1:
        raise InvalidRequest(name, values[:8], "one value")
    return _decoded(name, values[0])


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, float):
        return float(str(np.float32(value)))  # the number that the caller wrote: 0.9, not 0.8999999761581421
    if not isinstance(value, bytes) or (name == "text_input" and len(value) > DECODED):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, value[:40], f"text in UTF-8 ({error.reason} at byte {error.start})") from None
