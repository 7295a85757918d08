"""A Channel (response_writer.py) to a caller of Triton: texts and errors as responses.

Each call crosses into the server's process, so one thread makes them all.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb

from ..generation.results import Piece
from .outputs import output
from .response_writer import code_of, message_of

# Outputs that most responses of a request have in common: their tensors are made once, in shared memory too.
_CACHED = ("finish_reason", "input_tokens", "truncated_tokens", "output_log_probs")


class TritonChannel:
    """The responses of one request."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._tensors: dict[tuple[str, Any], Any] = {}

    def send(self, piece: Piece) -> None:
        """Send a piece; one with a finish reason is the last response."""
        outputs = [self._tensor(name, value) for name, value in piece.outputs().items()]
        flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if piece.finish_reason else 0
        self._sender.send(pb.InferenceResponse(outputs), flags=flags)

    def refuse(self, error: Exception) -> None:
        """Send an error as the last response."""
        refusal = pb.TritonError(message_of(error), getattr(pb.TritonError, code_of(error)))
        self._sender.send(pb.InferenceResponse(error=refusal), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def left(self) -> bool:
        """Whether the caller has cancelled the request or disconnected."""
        return bool(self._sender.is_cancelled())

    def _tensor(self, name: str, value: Any) -> Any:
        if name not in _CACHED:
            return output(name, value)
        if (name, value) not in self._tensors:
            self._tensors[name, value] = output(name, value)
        return self._tensors[name, value]
