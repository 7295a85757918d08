"""The channel to a caller of Triton: what it asks, and responses to it.

Each call crosses into the server's process. The last response releases Triton's objects: Triton unloads a model, and so
stops, only when none is left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

_TYPES: dict[str, Any] = {
    "text_output": np.object_,
    "finish_reason": np.object_,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "truncated_tokens": np.int32,
    "output_log_probs": np.float32,
    "num_input_tokens": np.int32,
    "num_output_tokens": np.int32,
}
# Outputs that most responses of a request have in common: their tensors are made once, in shared memory too.
_CACHED = ("finish_reason", "input_tokens", "truncated_tokens", "output_log_probs", "num_input_tokens")


class TritonChannel:
    """The responses of one request, with the outputs that are `requested`, or all. For any thread."""

    def __init__(self, sender: Any, requested: tuple[str, ...] = ()) -> None:
        self._sender: Any = sender  # None behind the last response
        self._requested = requested
        self._tensors: dict[tuple[str, Any], Any] = {}
        self._lock = threading.Lock()  # Triton crashes when an answered request is polled for cancellation

    @property
    def ended(self) -> bool:
        """Whether the last response has been sent."""
        return self._sender is None

    def send(self, outputs: Mapping[str, Any], final: bool) -> None:
        """Send a response; the last one where it is `final`."""
        wanted = self._requested or outputs
        tensors = [self._tensor(name, value) for name, value in outputs.items() if name in wanted]
        self._respond(pb.InferenceResponse(tensors), final)

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response; `code` is a name in pb.TritonError."""
        error = pb.TritonError(message, getattr(pb.TritonError, code))
        self._respond(pb.InferenceResponse(error=error), final=True)

    def left(self) -> bool:
        """Whether the caller has cancelled the request or disconnected; false once it has its last response."""
        with self._lock:
            return self._sender is not None and bool(self._sender.is_cancelled())

    def _respond(self, response: Any, final: bool) -> None:
        with self._lock:
            sender = self._sender
            if final:
                self._sender = None
                self._tensors.clear()
            if sender is not None:
                sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def _tensor(self, name: str, value: Any) -> Any:
        if name not in _CACHED or isinstance(value, list):  # a relay's log-probs
            return _tensor(name, value)
        if (name, value) not in self._tensors:
            self._tensors[name, value] = _tensor(name, value)
        return self._tensors[name, value]


def _tensor(name: str, value: Any) -> Any:
    """The tensor [1, number of values] of a value, or of a sequence of them."""
    plain = value.encode() if isinstance(value, str) else value
    return pb.Tensor(name, np.array([plain], _TYPES[name]).reshape(1, -1))
