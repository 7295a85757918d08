"""One call of a relay: asked of the engine, answered with its response, and cancelled there when its caller leaves.

Owns the requests that go to the engine. Each of them blocks a thread until its answer comes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from .handover import error_code, new_relay_id


@dataclass(frozen=True)
class Door:
    """The engine that a relay hands calls on to, and the tensors that it knows."""

    engine: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def ask(self, inputs: list[Any], request_id: str) -> Any:
        """The engine's responses to a request, as they come. Waits for the first one."""
        request = pb.InferenceRequest(
            model_name=self.engine,
            inputs=inputs,
            requested_output_names=list(self.outputs),
            request_id=request_id,
        )
        return request.exec(decoupled=True)

    def open(self) -> bool:
        """Ask the engine something that changes nothing, as the way to it is set up at its first use."""
        try:
            return self.cancel(new_relay_id())
        except Exception:  # Triton refuses calls until both models are loaded
            return False

    def cancel(self, request_id: str) -> bool:
        """Have the engine end a request; false if it can't be asked."""
        control = [pb.Tensor("cancel_request", _strings(request_id)), pb.Tensor("text_input", _strings(""))]
        return not any(response.has_error() for response in self.ask(control, new_relay_id()))


class Call:
    """A request of a caller, until it is answered."""

    def __init__(self, door: Door, request: Any) -> None:
        self.over = False
        self._door = door
        self._request = request
        self._sender = request.get_response_sender()
        self._id = new_relay_id()
        self._cancelled = False
        self._ending = threading.Lock()  # Triton crashes when it is asked about a request that was answered

    def run(self) -> None:
        """Ask the engine, and answer the caller."""
        try:
            response = self._ask()
        except Exception as error:  # of any kind: the caller must not wait for ever
            response = _failed(f"{self._door.engine} can't be asked: {error}", pb.TritonError.INTERNAL)
        self._send(response)

    def refuse(self, message: str) -> None:
        """Answer that there is no room for it."""
        self._send(_failed(message, pb.TritonError.UNAVAILABLE))

    @property
    def asks_for_nothing(self) -> bool:
        """Whether it is the configuration's warm-up request, for no tokens; the engine would refuse it."""
        asked = pb.get_input_tensor_by_name(self._request, "max_tokens")
        return asked is not None and not asked.as_numpy().any()

    def warm_up(self) -> None:
        """Answer with nothing."""
        counts = ("input_tokens", "output_tokens", "truncated_tokens")
        outputs = [pb.Tensor(name, np.zeros((1, 1), np.int32)) for name in counts]
        outputs += [pb.Tensor(name, _strings("")) for name in ("text_output", "finish_reason")]
        self._send(pb.InferenceResponse([*outputs, pb.Tensor("output_log_probs", np.zeros((1, 0), np.float32))]))

    def watch(self) -> None:
        """Have the engine cancel the request, if its caller has left."""
        if not self._cancelled and self._has_left():
            self._cancelled = True
            self._door.cancel(self._id)

    def _send(self, response: Any) -> None:
        with self._ending:
            self.over = True
            self._sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _has_left(self) -> bool:
        with self._ending:
            return not self.over and bool(self._sender.is_cancelled())

    def _ask(self) -> Any:
        given = [tensor for tensor in self._request.inputs() if tensor.name() in self._door.inputs]
        for response in self._door.ask(given, self._id):
            if response.has_error():  # Triton's own: it does not reach the engine
                return _failed(response.error().message(), pb.TritonError.UNAVAILABLE)
            if response.output_tensors():  # the first response says that the request has arrived, and no more
                return self._answer({tensor.name(): tensor for tensor in response.output_tensors()})
        return _failed(f"{self._door.engine} did not answer", pb.TritonError.INTERNAL)

    def _answer(self, outputs: dict[str, Any]) -> Any:
        code = error_code(_text(outputs["finish_reason"]))
        if code is not None:
            return _failed(_text(outputs["text_output"]), getattr(pb.TritonError, code))
        asked = self._request.requested_output_names()
        return pb.InferenceResponse([tensor for name, tensor in outputs.items() if name in asked or not asked])


def _strings(text: str) -> Any:
    return np.array([[text.encode()]], np.object_)


def _text(tensor: Any) -> str:
    return str(tensor.as_numpy().reshape(-1)[0].decode())


def _failed(message: str, code: Any) -> Any:
    return pb.InferenceResponse(error=pb.TritonError(message, code))
