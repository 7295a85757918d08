"""The relay's end of the line to its engine: calls that wait for their answers.

Owns the calls, and that each gets exactly one answer, also when the engine dies. Knows nothing of what is asked.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import triton_python_backend_utils as pb

from .line import Line, connected, text_of
from .outputs import output
from .reasons import ENGINE_UNREACHABLE, message
from .turns import Turns

IDLE_SECONDS = 0.05


class Call:
    """A request of a caller, until it is answered."""

    def __init__(self, request: Any, number: int, line: Line | None) -> None:
        self.number = number
        self.line = line
        self.over = False
        self.cancelled = False
        self._asked = request.requested_output_names()
        self._sender = request.get_response_sender()
        self._ending = threading.Lock()  # Triton crashes when it is asked about a request that was answered

    def answer(self, outputs: dict[str, Any]) -> None:
        """Answer with those outputs that the caller asked for."""
        asked = self._asked or outputs
        self._send(pb.InferenceResponse([output(name, value) for name, value in outputs.items() if name in asked]))

    def fail(self, message: str, code: str) -> None:
        """Answer with an error."""
        self._send(pb.InferenceResponse(error=pb.TritonError(message, getattr(pb.TritonError, code))))

    def has_left(self) -> bool:
        """Whether the caller waits no more."""
        with self._ending:
            return not self.over and bool(self._sender.is_cancelled())

    def _send(self, response: Any) -> None:
        with self._ending:
            if not self.over:
                self.over = True
                self._sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Calls:
    """The calls of a relay that are under way."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, Call] = {}
        self._line: Line | None = None
        self._turns: Turns[Call] = Turns()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    def take(self, request: Any) -> None:
        """Hand a request on; it is answered later."""
        number = next(self._numbers)
        asked = {tensor.name(): _plain(tensor.as_numpy()) for tensor in request.inputs()}
        try:
            line = self._connected()
        except OSError as error:
            text = f"the engine {self._engine} can't be reached: {error}. Try again later"
            Call(request, number, None).fail(message(ENGINE_UNREACHABLE, text), "UNAVAILABLE")
            return
        call = Call(request, number, line)
        with self._lock:
            self._open[number] = call
        self._turns.add(call)
        try:
            line.send({"id": number, "ask": asked})
        except OSError:
            line.close()
            self._abandon(line)  # the line's reader may have done so before this call was there

    def close(self) -> None:
        """Break the line; Triton has no open request by now."""
        self._closing.set()
        self._watcher.join()
        with self._lock:
            line = self._line
        if line is not None:
            line.close()
        self._turns.clear()  # what they hold of Triton must be gone before Triton is

    def _connected(self) -> Line:
        with self._lock:
            if self._line is None or self._line.closed:
                self._line = connected(self._engine)
                threading.Thread(target=self._read, args=(self._line,), name="answers", daemon=True).start()
            return self._line

    def _read(self, line: Line) -> None:
        while (message := line.receive()) is not None:
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
        line.close()
        self._abandon(line)

    def _abandon(self, line: Line) -> None:
        with self._lock:
            left = [call for call in self._open.values() if call.line is line]
            for call in left:
                del self._open[call.number]
        text = f"the engine {self._engine} ended before it answered. Try again later"
        for call in left:
            call.fail(message(ENGINE_UNREACHABLE, text), "UNAVAILABLE")

    def _watch(self) -> None:
        while not self._closing.wait(self._turns.wait() or IDLE_SECONDS):
            for call in self._turns.due(time.monotonic()):
                try:
                    if not call.cancelled and call.has_left() and call.line is not None:
                        call.cancelled = True
                        call.line.send({"cancel": call.number})
                except Exception as error:
                    pb.Logger.log_error(f"a caller could not be looked after: {error!r}")


def _plain(array: Any) -> list[Any]:
    return [text_of(value) if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
