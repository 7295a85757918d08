"""The way back to one caller through Triton: texts and errors as responses.

Owns the form of the responses. Each of its calls crosses into the server's process, so one thread makes them all.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb

from ..generation.results import Piece
from .codes import code_of, message_of
from .outputs import output
from .pieces import values_of

# Outputs that most responses of a request have in common: their tensors are made once, in shared memory too.
_LASTING = ("finish_reason", "input_tokens", "truncated_tokens", "output_log_probs")


class TritonChannel:
    """See outbox.Channel."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._made: dict[tuple[str, Any], Any] = {}

    def send(self, piece: Piece) -> None:
        """See Channel."""
        outputs = [self._tensor(name, value) for name, value in values_of(piece).items()]
        flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if piece.finish_reason else 0
        self._sender.send(pb.InferenceResponse(outputs), flags=flags)

    def refuse(self, error: Exception) -> None:
        """See Channel."""
        refusal = pb.TritonError(message_of(error), getattr(pb.TritonError, code_of(error)))
        self._sender.send(pb.InferenceResponse(error=refusal), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def left(self) -> bool:
        """See Channel."""
        return bool(self._sender.is_cancelled())

    def _tensor(self, name: str, value: Any) -> Any:
        if name not in _LASTING:
            return output(name, value)
        found = self._made.get((name, value))
        if found is None:
            found = self._made[name, value] = output(name, value)
        return found
