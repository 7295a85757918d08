"""Triton adapter of NAME: a relay that passes plain infer calls to the engine NAME_stream.

A decoupled model refuses plain calls, so this model takes them. It is not decoupled, but `execute` returns at once and
each request is answered when its text is complete, so callers never wait for one another. Each call gets exactly one
answer, even if the engine dies.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import suppress
from typing import Any

import triton_python_backend_utils as pb

from .errors import ENGINE_UNREACHABLE, QUEUE_FULL, TOO_LONG, InvalidInput, QueueFull, Reason, with_reason
from .inputs import refuse_huge
from .serving.cancellation_poller import CancellationPoller
from .serving.ipc import FramedSocket, connect, publication, text_of
from .serving.traces import trace_of
from .serving.triton_channel import TritonChannel

IDLE_SECONDS = 0.05
OLD_SECONDS = 0.25  # the age above which the engine's answer refuses no request: the next request brings a new answer


class PendingCall:
    """A caller's request that has not been answered yet."""

    def __init__(self, request: Any, number: int) -> None:
        self.channel = TritonChannel(request.get_response_sender(), tuple(request.requested_output_names()))
        self.number = number
        self.connection: FramedSocket | None = None
        self.cancelled = False

    @property
    def ended(self) -> bool:
        """Whether it has been answered."""
        return self.channel.ended

    def fail(self, reason: Reason, text: object) -> None:
        """Answer with an error of the given `reason`."""
        self.channel.fail(with_reason(reason, text), reason.code)

    def fail_unreachable(self, what: str) -> None:
        """Answer that the engine can't be reached; `what` has its name and says what happened."""
        self.fail(ENGINE_UNREACHABLE, f"the engine {what}. Try again later")


class TritonPythonModel:
    """The relay's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the engine's name, and start the thread that polls calls for cancellation."""
        config = json.loads(args["model_config"])
        self._engine = config["parameters"]["engine"]["string_value"]
        self._published = publication(args["model_repository"])
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, PendingCall] = {}
        self._connection: FramedSocket | None = None
        self._most_open: int | None = None  # according to the engine's last answer
        self._most_open_until = 0.0
        self._refused = 0  # refused calls that were not yet reported to the engine, which counts them
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
        self._poller.clear()  # the calls' Triton objects must be freed before Triton ends

    def _submit(self, request: Any) -> None:
        call = PendingCall(request, next(self._numbers))
        if self._is_full():
            call.fail(QUEUE_FULL, QueueFull())
            self._refused += 1
            return
        try:
            inputs = {tensor.name(): _plain(tensor) for tensor in request.inputs()}
        except InvalidInput as refusal:
            call.fail(TOO_LONG, refusal)
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
            message = {"id": call.number, "inputs": inputs, "parameters": request.parameters()}
            connection.send({**message, "trace": trace_of(request)})
        except OSError:
            connection.close()
            self._abandon(connection)  # the connection's reader may have done so before this call was added

    def _is_full(self) -> bool:
        """Whether the engine would refuse another request, so that the relay need not send it."""
        now = time.monotonic()
        if self._most_open is None or len(self._open) < self._most_open:
            return False
        if now > self._most_open_until:
            self._most_open_until = now + OLD_SECONDS
            return False
        return True

    def _connected(self) -> FramedSocket:
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._engine, self._published)
                threading.Thread(target=self._read, args=(self._connection,), name="answers", daemon=True).start()
            return self._connection

    # The threads hold no call while they wait: an answered call and its Triton objects must be freed at once.

    def _read(self, connection: FramedSocket) -> None:
        while self._answer(connection.receive()):
            pass
        connection.close()
        self._abandon(connection)

    def _answer(self, message: Any) -> bool:
        """Answer a call with the engine's message; return false if the connection has ended."""
        if message is None:
            return False
        self._most_open, self._most_open_until = message["most_open"], time.monotonic() + OLD_SECONDS
        with self._lock:
            call = self._open.pop(message["id"], None)
        try:
            if call is None:  # a second answer must not end the thread, which reads the answers to other calls, too
                pb.Logger.log_error(f"request {message['id']} was answered twice")
            elif "error" in message:
                call.channel.fail(message["error"], message["code"])
            else:
                call.channel.send(message["outputs"], final=True)
        except Exception as error:  # other calls must still get their answers
            pb.Logger.log_error(f"a response could not be sent: {error!r}")
        return True

    def _abandon(self, connection: FramedSocket) -> None:
        with self._lock:
            unanswered = [call for call in self._open.values() if call.connection is connection]
            for call in unanswered:
                del self._open[call.number]
        for call in unanswered:
            call.fail_unreachable(f"{self._engine} ended before it answered")

    def _poll(self) -> None:
        while not self._closing.wait(self._poller.wait() or IDLE_SECONDS):
            self._cancel(self._poller.due(time.monotonic()))
            self._report()

    def _report(self) -> None:
        """Report the number of refused calls to the engine."""
        connection, refused = self._connection, self._refused
        if connection is not None and refused:
            with suppress(OSError):
                connection.send({"refused": refused})
                self._refused -= refused

    def _cancel(self, calls: list[PendingCall]) -> None:
        """Cancel each of `calls` that its caller has cancelled."""
        for call in calls:
            try:
                if not call.cancelled and call.channel.is_cancelled() and call.connection is not None:
                    call.cancelled = True
                    call.connection.send({"cancel": call.number})
            except Exception as error:
                pb.Logger.log_error(f"a call could not be polled for cancellation: {error!r}")


def _plain(tensor: Any) -> list[Any]:
    """Return the values of a tensor, as a message carries them. Raises InvalidInput for a huge text."""
    values = tensor.as_numpy().reshape(-1).tolist()
    refuse_huge(tensor.name(), (value for value in values if isinstance(value, bytes)))
    return [text_of(value) if isinstance(value, bytes) else value for value in values]
