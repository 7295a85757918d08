"""TritonChannel, which sends the responses of a request to its caller through Triton.

Each call communicates with the server's process. The last response releases Triton's objects, because Triton can only
unload the model, or stop, when none of these objects is left.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

COUNT = struct.Struct("<q")
_TYPES: dict[str, Any] = {
    "text_output": np.object_,
    "finish_reason": np.object_,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "truncated_tokens": np.int32,
    "output_log_probs": np.float32,
    "prompt_log_probs": np.float32,
    "num_input_tokens": np.int32,
    "num_output_tokens": np.int32,
}
# These tensors have a row for each token.
_TABLES: dict[str, Any] = {
    "token_ids": np.int32,
    "token_texts": np.object_,
    "token_log_probs": np.float32,
    "token_special": np.bool_,
}
_TABLES |= {f"prompt_{name}": kind for name, kind in _TABLES.items()}
# Outputs that hardly change within a request, so that their tensors (in shared memory) are made once.
_CACHED = ("finish_reason", "input_tokens", "truncated_tokens", "output_log_probs", "num_input_tokens")


class OpenRequests:
    """The number of requests of this process without a last response, in a file of 8 bytes that outlives the process.

    `hfx serve` names the folder and reads the file, because Triton 2.51 never ends the requests of a killed process.
    """

    def __init__(self, folder: str | None) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._file: mmap.mmap | None = None
        if folder is not None:
            path = Path(folder, str(os.getpid()))
            path.write_bytes(bytes(COUNT.size))
            with path.open("r+b") as file:
                self._file = mmap.mmap(file.fileno(), COUNT.size)

    def add(self, change: int) -> None:
        """Add `change` to the number."""
        if self._file is not None:
            with self._lock:
                self._count += change
                COUNT.pack_into(self._file, 0, self._count)


OPEN_REQUESTS = OpenRequests(os.environ.get("HFX_OPEN_REQUESTS"))


def name_of(request: Any) -> str:
    """Return the name by which the front ends a request; empty if it has none."""
    name = request.correlation_id()
    return name if isinstance(name, str) else ""


def ended_by(request: Any) -> str:
    """Return the name of the request that `request` ends; empty if it ends none."""
    return name_of(request) if request.flags() & pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END else ""


def cancellation() -> Any:
    """Return the response to a cancelled request."""
    return pb.InferenceResponse(error=pb.TritonError("The request was cancelled.", pb.TritonError.CANCELLED))


class TritonChannel:
    """Sends the responses of one request with the `requested` outputs (empty: all). For any thread."""

    def __init__(self, sender: Any, requested: tuple[str, ...] = ()) -> None:
        self._sender: Any = sender  # None after the last response
        self._requested = requested
        self._tensors: dict[tuple[str, Any], Any] = {}
        OPEN_REQUESTS.add(1)
        self._lock = threading.Lock()  # Triton crashes if an ended request is polled for cancellation

    @property
    def ended(self) -> bool:
        """Whether the last response has been sent."""
        return self._sender is None

    def answer(self, respond: Callable[[Any], Any], result: Any) -> None:
        """Send `respond(result)`, a pb.InferenceResponse, as the last response, or that of an error that prevents it.

        Raises nothing.
        """
        try:
            response = respond(result)
        except Exception as error:  # there may be no memory for the tensors
            response = respond(error)
        try:
            self._respond(response, final=True)
        except Exception as error:  # the next request must still get its answer
            pb.Logger.log_error(f"a response could not be sent: {error!r}")

    def send(self, outputs: Mapping[str, Any], final: bool) -> None:
        """Send a response. `final` says whether it is the last one."""
        wanted = self._requested or outputs
        tensors = [self._tensor(name, value) for name, value in outputs.items() if name in wanted]
        self._respond(pb.InferenceResponse(tensors), final)

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response; `code` is a name in pb.TritonError."""
        error = pb.TritonError(message, getattr(pb.TritonError, code))
        self._respond(pb.InferenceResponse(error=error), final=True)

    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled the request or disconnected. False after the last response."""
        with self._lock:
            return self._sender is not None and bool(self._sender.is_cancelled())

    def _respond(self, response: Any, final: bool) -> None:
        with self._lock:
            sender = self._sender
            if final:
                self._sender = None
                self._tensors.clear()
            if sender is None:
                return
            try:
                sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
            finally:
                OPEN_REQUESTS.add(-int(final))

    def _tensor(self, name: str, value: Any) -> Any:
        if name in _TABLES:
            return _table(name, value)
        if name not in _CACHED or isinstance(value, list) or (isinstance(value, tuple) and value):  # log-probs
            return _tensor(name, value)
        if (name, value) not in self._tensors:
            self._tensors[name, value] = _tensor(name, value)
        return self._tensors[name, value]


def _tensor(name: str, value: Any) -> Any:
    """Return the tensor [1, number of values] of a value, or of a sequence of values."""
    plain = value.encode() if isinstance(value, str) else value
    return pb.Tensor(name, np.array([plain], _TYPES[name]).reshape(1, -1))


def _table(name: str, rows: list[list[Any]]) -> Any:
    """Return the tensor [1, rows, values of a row]."""
    values = [value.encode() if isinstance(value, str) else value for row in rows for value in row]
    return pb.Tensor(name, np.array(values, _TABLES[name]).reshape(1, len(rows), len(rows[0]) if rows else 1))
