"""Every failure of the engine that a caller can cause, cure or must live with."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxother = 160


class EngineError(Exception):
    """What happened (`message`), and what to do next (`fix`, may be empty)."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. {self.fix}" if self.fix else self.message


class InvalidRequest(EngineError):
    """The value of `field` can't be taken; `allowed` says what can, and `message`, if given, says all of it."""

    def __init__(self, field: str, value: object, allowed: str, message: str = "") -> None:
        shown = repr(value[:80]) if isinstance(value, str) else _SHORT.repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        super().__init__(message or f"{field} is {shown}; allowed: {allowed}")
        self.field = field
        self.allowed = allowed


class DoesNotFit(EngineError):
    """The request needs `needed` units of `what` (positions, rows ...), of which there are `available` at most."""

    def __init__(self, what: str, needed: int, available: int, fix: str = "") -> None:
        super().__init__(f"the request needs {needed} {what}; this engine has {available}", fix)
        self.what = what
        self.needed = needed
        self.available = available


class QueueFull(EngineError):
    """As many requests wait as may wait; nothing was taken, so the caller may try again later."""


class Draining(EngineError):
    """The server finishes what it has and takes no new requests."""


class EngineClosed(Draining):
    """The engine is closed; requests that it still had end with this too."""


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it was done."""

    def __init__(
        self,
        message: str = "the deadline passed before the request was done",
        fix: str = "Allow more time, or ask for fewer tokens",
    ) -> None:
        super().__init__(message, fix)


class StepFailed(EngineError):
    """The step that the request was part of failed; other requests go on, and this one may be sent again."""


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
    """What shall run the model is not here: an execution provider of onnxruntime, a device for it, or OpenVINO."""
