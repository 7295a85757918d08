"""The way back to one caller through Triton: texts and errors as responses.

Owns the form of the responses. Each of its calls crosses into the server's process, so one thread makes them all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from ..generation.results import Piece
from .codes import code_of
from .handover import error_reason

_TYPES: dict[str, Any] = {
    "text_output": np.object_,
    "finish_reason": np.object_,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "truncated_tokens": np.int32,
    "output_log_probs": np.float32,
}


class TritonChannel:
    """See outbox.Channel. A relay watches its caller itself."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._made: dict[tuple[str, Any], Any] = {}

    def send(self, piece: Piece) -> None:
        """See Channel."""
        outputs = [
            _tensor("text_output", piece.text.encode()),
            self._again("finish_reason", (piece.finish_reason or "").encode()),
            self._again("input_tokens", piece.input_tokens),
            _tensor("output_tokens", piece.output_tokens),
            self._again("truncated_tokens", piece.truncated_tokens),
            _tensor("output_log_probs", piece.log_probs) if piece.log_probs else self._again("output_log_probs", ()),
        ]
        flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if piece.finish_reason else 0
        self._sender.send(pb.InferenceResponse(outputs), flags=flags)

    def refuse(self, error: Exception) -> None:
        """See Channel."""
        refusal = pb.TritonError(str(error), getattr(pb.TritonError, code_of(error)))
        self._sender.send(pb.InferenceResponse(error=refusal), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def accept(self) -> None:
        """See Channel."""
        self._sender.send(pb.InferenceResponse([]), flags=0)

    def left(self) -> bool:
        """See Channel."""
        return bool(self._sender.is_cancelled())

    def _again(self, name: str, value: Any) -> Any:
        """A tensor that most responses of a request have in common; its place in shared memory is kept too."""
        found = self._made.get((name, value))
        if found is None:
            found = self._made[name, value] = _tensor(name, value)
        return found


class RelayedChannel(TritonChannel):
    """The way back to a relay, which watches its caller itself; Triton would not tell of it either."""

    def refuse(self, error: Exception) -> None:
        """See Channel and handover.py."""
        self.send(Piece(str(error), finish_reason=error_reason(code_of(error))))

    def left(self) -> bool:
        """See Channel."""
        return False


def _tensor(name: str, value: Any) -> Any:
    return pb.Tensor(name, np.array([value], _TYPES[name]).reshape(1, -1))
