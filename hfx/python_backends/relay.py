"""Triton adapter of NAME: plain infer calls, handed on to the engine NAME_stream.

A decoupled model refuses plain calls, so this one takes them. It is not decoupled, yet returns at once and answers each
request when its text is there: callers never wait for one another. Each call gets exactly one answer, also when the
engine dies.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import triton_python_backend_utils as pb

from .inputs import InvalidInput, refuse_huge
from .serving.cancellation_poller import CancellationPoller
from .serving.ipc import ENGINE_UNREACHABLE, FramedSocket, connect, text_of
from .serving.outputs import output

IDLE_SECONDS = 0.05
TOO_LONG = "TOO_LONG"  # the reason of a text that the engine would refuse (response_writer.py)


class PendingCall:
    """A request of a caller, until it is answered."""

    def __init__(self, request: Any, number: int) -> None:
        self.number = number
        self.connection: FramedSocket | None = None
        self.over = False
        self.cancelled = False
        self._requested = request.requested_output_names()
        self._sender = request.get_response_sender()
        self._ending = threading.Lock()  # Triton crashes when an answered request is polled for cancellation

    def answer(self, outputs: dict[str, Any]) -> None:
        """Answer with those outputs that the caller asked for."""
        requested = self._requested or outputs
        self._send(pb.InferenceResponse([output(name, value) for name, value in outputs.items() if name in requested]))

    def fail_unreachable(self, what: str) -> None:
        """Answer that `what` has happened to the engine."""
        self.fail(f"[hfx:{ENGINE_UNREACHABLE}] the engine {what}. Try again later", "UNAVAILABLE")

    def fail(self, message: str, code: str) -> None:
        """Answer with an error."""
        self._send(pb.InferenceResponse(error=pb.TritonError(message, getattr(pb.TritonError, code))))

    def has_left(self) -> bool:
        """Whether the caller has cancelled the call or disconnected."""
        with self._ending:
            return not self.over and bool(self._sender.is_cancelled())

    def _send(self, response: Any) -> None:
        with self._ending:
            if not self.over:
                self.over = True
                self._sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonPythonModel:
    """The relay's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Note the engine's name, and poll calls for cancellation."""
        config = json.loads(args["model_config"])
        self._engine = config["parameters"]["engine"]["string_value"]
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, PendingCall] = {}
        self._connection: FramedSocket | None = None
        self._poller: CancellationPoller[PendingCall] = CancellationPoller()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="cancellation", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            self._submit(request)

    def finalize(self) -> None:
        """Disconnect; Triton has no open request by now."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.close()
        self._poller.clear()  # what they hold of Triton must be gone before Triton is

    def _submit(self, request: Any) -> None:
        call = PendingCall(request, next(self._numbers))
        try:
            inputs = {tensor.name(): _plain(tensor) for tensor in request.inputs()}
        except InvalidInput as refusal:
            call.fail(f"[hfx:{TOO_LONG}] {refusal}", "INVALID_ARG")
            return
        try:
            connection = call.connection = self._connected()
        except OSError as error:
            call.fail_unreachable(f"{self._engine} can't be reached: {error}")
            return
        with self._lock:
            self._open[call.number] = call
        self._poller.add(call)
        try:
            connection.send({"id": call.number, "inputs": inputs})
        except OSError:
            connection.close()
            self._abandon(connection)  # its reader may have done so before this call was there

    def _connected(self) -> FramedSocket:
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._engine)
                threading.Thread(target=self._read, args=(self._connection,), name="answers", daemon=True).start()
            return self._connection

    def _read(self, connection: FramedSocket) -> None:
        while (message := connection.receive()) is not None:
            with self._lock:
                call = self._open.pop(message["id"], None)
            if call is None:  # a second answer must not end the thread that reads the others' first ones
                pb.Logger.log_error(f"request {message['id']} was answered twice")
                continue
            try:
                if "error" in message:
                    call.fail(message["error"], message["code"])
                else:
                    call.answer(message["outputs"])
            except Exception as error:  # others must have their answers
                pb.Logger.log_error(f"a response could not be sent: {error!r}")
        connection.close()
        self._abandon(connection)

    def _abandon(self, connection: FramedSocket) -> None:
        with self._lock:
            unanswered = [call for call in self._open.values() if call.connection is connection]
            for call in unanswered:
                del self._open[call.number]
        for call in unanswered:
            call.fail_unreachable(f"{self._engine} ended before it answered")

    def _poll(self) -> None:
        while not self._closing.wait(self._poller.wait() or IDLE_SECONDS):
            for call in self._poller.due(time.monotonic()):
                try:
                    if not call.cancelled and call.has_left() and call.connection is not None:
                        call.cancelled = True
                        call.connection.send({"cancel": call.number})
                except Exception as error:
                    pb.Logger.log_error(f"a call could not be polled for cancellation: {error!r}")


def _plain(tensor: Any) -> list[Any]:
    """The values of a tensor as a message carries them. Raises InvalidInput for a huge text."""
    values = tensor.as_numpy().reshape(-1).tolist()
    refuse_huge(tensor.name(), (value for value in values if isinstance(value, bytes)))
    return [text_of(value) if isinstance(value, bytes) else value for value in values]
