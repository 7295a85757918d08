"""The errors of the code that runs inside Triton, and the one table of their reasons.

Triton's codes, the client's exceptions, the statuses of the HTTP front and the metrics of refusals come from REASONS.
This module is copied into every model folder and imported by the client, so it imports only the standard library.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


class JsonRepr(reprlib.Repr):
    """Shows values of requests in a bounded length, with JSON's names for True, False and None."""

    def repr_bool(self, value: bool, level: int) -> str:  # noqa: D102
        return "true" if value else "false"

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: D102, N802
        return "null"


_SHORT = JsonRepr()
_SHORT.maxother = 160


@dataclass(frozen=True)
class Reason:
    """Why a request has no answer, for programs: an error message begins with `[hfx:NAME]`.

    `code` is a name in pb.TritonError, which does not exist yet while Triton's Python process imports a model. `error`
    is the name of the class in hfx.errors that the client raises, `status` the status of the HTTP front's response.
    `refusal` is the reason in the metrics; it is empty for a request that was taken.
    """

    name: str
    code: str
    error: str
    status: int
    refusal: str = ""


INVALID_REQUEST = Reason("INVALID_REQUEST", "INVALID_ARG", "RequestRefused", 400, "invalid")
TOO_LONG = Reason("TOO_LONG", "INVALID_ARG", "RequestRefused", 400, "too_long")
CONTEXT_TOO_LONG = Reason("CONTEXT_TOO_LONG", "INVALID_ARG", "RequestRefused", 413)
QUEUE_FULL = Reason("QUEUE_FULL", "UNAVAILABLE", "ServerBusy", 429, "queue_full")
DRAINING = Reason("DRAINING", "UNAVAILABLE", "ServerBusy", 503, "draining")
# The engine has died and is started again, or has not started yet.
ENGINE_UNREACHABLE = Reason("ENGINE_UNREACHABLE", "UNAVAILABLE", "ServerBusy", 503)
DEADLINE_EXCEEDED = Reason("DEADLINE_EXCEEDED", "CANCELLED", "RequestTimeout", 504)
FAILED = Reason("FAILED", "INTERNAL", "ServerError", 500)
_REFUSALS = (INVALID_REQUEST, TOO_LONG, CONTEXT_TOO_LONG, QUEUE_FULL, DRAINING)
_ALL = (*_REFUSALS, ENGINE_UNREACHABLE, DEADLINE_EXCEEDED, FAILED)
REASONS: Mapping[str, Reason] = {reason.name: reason for reason in _ALL}

# Refusals of requests to encoders, which the native backend has, too: its build makes a C++ header of these texts
# (hfx/native/build.py). %s is a text, %lu and %ld are numbers.
ROWS_DIFFER = "%s has %lu rows but %s has %lu"
IS_MISSING = "%s is missing"
IS_EMPTY = "%s is empty"
HAS_NO_STRINGS = "%s is empty: send at least one string"
HAS_NO_TOKENS = "%s has no tokens"
PAIR_HAS_NO_TOKENS = "%s and %s have no tokens"
HAS_TOO_MANY_BYTES = "%s has %lu bytes; at most %lu can be taken"
IS_NONE_OF = "%s is '%s'; it must be %s"
WINDOWS_SHARE = "%s is %ld; windows may share 0 to %lu tokens"
HAS_NO_WINDOWS = "%s is %ld, but long texts are not read in windows: long is %s"
IS_TOO_LONG = "%s is too long: it has %lu %s, above the limit of %lu"
TO_DIVIDE = "Divide it, or send fewer rows at a time"
IS_HUGE = "%s has %lu bytes, above the limit of %lu. Divide the text"
HAS_NO_PROMPTS = "%s can't be taken: the model has no prompts"
BOTH_ARE_SENT = "%s and %s are sent: send one of them"
HAS_TOO_MANY_LABELS = "%s has %lu labels; at most %lu can be taken"
HAS_AN_EMPTY_LABEL = "%s has an empty label"
LEAVES_NO_ROOM = "%s has a label that leaves no room for the text in %lu tokens"
DIFFERS_BETWEEN_ROWS = "%s differs between the rows of one request"
IS_BELOW_ONE = "%s must be at least 1, not %ld"
HAS_ANOTHER_TYPE = "%s has another type; it must be %s"
HAS_OTHER_DIMENSIONS = "dimensions is %lu; the model's vectors have %lu"
IS_OVERLOADED = "The model has more to do than it can answer in time"
TRY_AGAIN = "Send fewer requests at a time, or try again later."

_REASON = re.compile(r"\[hfx:([A-Z_]+)\] ")
# The text that Triton writes before the message of a model (2.51).
_OF_TRITON = re.compile(r"^(?:in ensemble '[^']*', )?(?:Failed to process the request\(s\)[^,]*, message: )?")


def reason_of(error: Exception) -> Reason:
    """Return the reason of an error; FAILED for a bug."""
    return error.reason if isinstance(error, EngineError) else FAILED


def with_reason(reason: Reason, text: object) -> str:
    """Return a message for callers, with its reason in front."""
    return f"[hfx:{reason.name}] {text}"


def split_reason(message: str) -> tuple[str, str]:
    """Return the name of a message's reason (empty if it has none), and the message without it."""
    found = _REASON.search(message)
    return "" if found is None else found[1], _REASON.sub("", message).strip()


def split_prefixes(message: str) -> tuple[str, str]:
    """Return the name of a message's reason, and the message without the reason and the text that Triton adds."""
    return split_reason(_OF_TRITON.sub("", message))


class EngineError(Exception):
    """The base class of the errors that a caller can cause or cure.

    `message` says what happened; `fix`, which may be empty, says what to do next.
    """

    reason: ClassVar[Reason] = FAILED

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. {self.fix}" if self.fix else self.message


class InvalidInput(ValueError):
    """A client's tensor is invalid; the text names the tensor and says what is wrong with it."""


class InvalidRequest(EngineError):
    """The value of `field` is invalid: it must be `allowed`. `message`, if given, replaces the whole text."""

    reason = INVALID_REQUEST

    def __init__(self, field: str, value: object, allowed: str, message: str = "") -> None:
        super().__init__(message or f"{field} is {_shown(value)}; it must be {allowed}")
        self.field = field
        self.allowed = allowed


def unusable(field: str, value: object, reason: str, alternative: str = "") -> InvalidRequest:
    """Return the error for a field that a request must not have because of `reason`; `alternative` would allow it."""
    fix = f"leave {field} out, or {alternative}" if alternative else f"leave {field} out"
    return InvalidRequest(field, value, "", f"{field} is {_shown(value)}, but {reason}; {fix}")


def _shown(value: object) -> str:
    shown = repr(value[:80]) if isinstance(value, str) else _SHORT.repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class DoesNotFit(EngineError):
    """The request needs `needed` units of `what` (positions, rows ...), of which there are `available` at most."""

    reason = TOO_LONG

    def __init__(self, what: str, needed: int, available: int, fix: str = "") -> None:
        super().__init__(f"the request needs {needed} {what}; this engine has {available}", fix)
        self.what = what
        self.needed = needed
        self.available = available


class ContextTooLong(EngineError):
    """The text `field`, which may not be cut, has `size` units of `what`, above the limit `most`."""

    reason = CONTEXT_TOO_LONG

    def __init__(self, field: str, size: int, what: str, most: int) -> None:
        super().__init__(IS_TOO_LONG % (field, size, what, most), TO_DIVIDE)


class QueueFull(EngineError):
    """The queue is full; the request was not taken, so the caller may try again later.

    The HTTP front finds `MESSAGE`, of generators, in answers, and then refuses further requests itself.
    """

    reason = QUEUE_FULL
    MESSAGE: ClassVar = "as many requests are in progress as may be"

    def __init__(self, message: str = MESSAGE, fix: str = "Try again later") -> None:
        super().__init__(message, fix)


class Draining(EngineError):
    """The server finishes its open requests and takes no new ones."""

    reason = DRAINING


class EngineClosed(Draining):
    """The engine is closed; requests that were open at that time end with this error too."""


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it was done."""

    reason = DEADLINE_EXCEEDED

    def __init__(
        self,
        message: str = "the deadline passed before the request was done",
        fix: str = "Allow more time, or ask for fewer tokens",
    ) -> None:
        super().__init__(message, fix)


class StepFailed(EngineError):
    """The step that the request was part of failed; other requests go on, and this one may be sent again."""


class DeviceLost(EngineError):
    """The GPU failed so that this process can't use it any longer; the engine closes."""


class BrokenState(EngineError):
    """The engine's own state contradicts itself; the engine closes before callers could get tokens of others."""


class Unexpected(EngineError):
    """A request ended with an unexpected error, `cause`: a bug, or a panic of a library in Rust.

    The message omits the text of `cause`, which may contain paths of the server; the log has the text.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"an unexpected {type(cause).__name__} ended the request", "The server's log says more")
        self.cause = cause


def failure_of(error: BaseException) -> Exception:
    """Return the error to answer a request with that ended with `error`.

    A handler of a request's errors catches BaseException: pyo3's PanicException is not an Exception, and a request
    without an answer hangs. Raises `error` itself if it is KeyboardInterrupt or SystemExit.
    """
    if isinstance(error, (EngineError, InvalidInput)):
        return error
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    return Unexpected(error)


class ModelRefused(EngineError):
    """The model can't run here."""


class ModelDamaged(ModelRefused):
    """engine.json or a file that it names is missing, damaged, or does not fit the others."""

    def __init__(self, message: str, fix: str = "Export the model again") -> None:
        super().__init__(message, fix)


class RuntimeTooOld(ModelRefused):
    """The installed onnxruntime is older than the model needs."""


class ProcessorUnsuited(ModelRefused):
    """The CPU lacks instructions without which these weights give wrong products."""


class ProviderMissing(ModelRefused):
    """An execution provider of onnxruntime, a device, or native operators that the model needs are missing."""
