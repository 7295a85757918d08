"""Which of Triton's error codes an error of the engine has, its reason for clients, and its reason in the metrics.

Codes are names in pb.TritonError, which is not there yet while the stub imports a model.
"""

from __future__ import annotations

from ..engine.errors import DeadlineExceeded, DoesNotFit, Draining, InvalidRequest, QueueFull

# Kind, Triton's code, reason in the message, reason of a refusal in the metrics; hfx/client/errors.py and
# docs/generation-serving.md have the same reasons.
_CODES = (
    (InvalidRequest, "INVALID_ARG", "INVALID_REQUEST", "invalid"),
    (DoesNotFit, "INVALID_ARG", "TOO_LONG", "too_long"),
    (QueueFull, "UNAVAILABLE", "QUEUE_FULL", "queue_full"),
    (Draining, "UNAVAILABLE", "DRAINING", "draining"),
    (DeadlineExceeded, "CANCELLED", "DEADLINE_EXCEEDED", None),
    (Exception, "INTERNAL", "FAILED", None),
)
REASONS = tuple(reason for *_, reason in _CODES if reason)


def code_of(error: Exception) -> str:
    """The name of the code that a caller gets."""
    return next(code for kind, code, _, _ in _CODES if isinstance(error, kind))


def message_of(error: Exception) -> str:
    """What a caller reads: `[hfx:REASON]`, for programs, and the error's own message."""
    reason = next(reason for kind, _, reason, _ in _CODES if isinstance(error, kind))
    return f"[hfx:{reason}] {error}"


def reason_of(error: Exception) -> str | None:
    """Why a request was refused; None for one that was taken and went wrong."""
    return next(reason for kind, _, _, reason in _CODES if isinstance(error, kind))
