"""Which of Triton's error codes, and which reason in the metrics, an error of the engine has.

Owns the two tables. Codes are names in pb.TritonError, which is not there yet while the stub imports a model.
"""

from __future__ import annotations

from ..engine.errors import DeadlineExceeded, DoesNotFit, Draining, InvalidRequest, QueueFull

_CODES = (
    (InvalidRequest, "INVALID_ARG"),
    (DoesNotFit, "INVALID_ARG"),
    (QueueFull, "UNAVAILABLE"),
    (Draining, "UNAVAILABLE"),
    (DeadlineExceeded, "CANCELLED"),
)
_REASONS = ((InvalidRequest, "invalid"), (DoesNotFit, "too_long"), (QueueFull, "queue_full"), (Draining, "draining"))
REASONS = tuple(reason for _, reason in _REASONS)


def code_of(error: Exception) -> str:
    """The name of the code that a caller gets."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL")


def reason_of(error: Exception) -> str | None:
    """Why a request was refused; None for one that was taken and went wrong."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
