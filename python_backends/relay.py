"""Triton adapter of NAME: plain infer calls, handed on to the engine NAME_stream.

A decoupled model refuses plain calls, so this one takes them. It is not decoupled, yet returns at once and answers each
request when its text is there: callers never wait for one another. Owns the threads, of which each call has one.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import triton_python_backend_utils as pb

from .responses.relaying import Call, Door
from .responses.turns import Turns

LEAVE_SECONDS = 5.0  # for threads whose answers are on their way
RETRY_SECONDS = IDLE_SECONDS = 0.05


class TritonPythonModel:
    """The relay's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Note the engine's name; the configuration's parameter `callers` bounds the calls that are under way."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        inputs = tuple(tensor["name"] for tensor in config["input"] if tensor["name"] != "stream")
        self.door = Door(parameters["engine"], inputs, tuple(tensor["name"] for tensor in config["output"]))
        self.callers = int(parameters["callers"])
        self.is_open = False  # the way to the engine
        self.under_way = 0
        self.changed = threading.Condition()
        self.turns: Turns[Call] = Turns()
        self.begun = threading.Event()
        self.ends = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.watcher.start()

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        self.begun.set()
        for request in requests:
            call = Call(self.door, request)
            if not self._has_room():
                call.refuse(f"{self.callers} calls are under way, as many as the engine takes. Try again later")
                continue
            self.turns.add(call)
            threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def finalize(self) -> None:
        """Wait for the last answers to leave; Triton has no open request by now."""
        self.ends.set()
        self.begun.set()
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way, LEAVE_SECONDS)
        self.watcher.join(LEAVE_SECONDS)
        self.turns.clear()  # what they hold of Triton must be gone before Triton is

    def _has_room(self) -> bool:
        with self.changed:
            has_room = self.under_way < self.callers
            self.under_way += has_room
        return has_room

    def _run(self, call: Call) -> None:
        try:
            if not self.is_open and call.asks_for_nothing:
                call.warm_up()
            else:
                call.run()
        except Exception as error:
            pb.Logger.log_error(f"a response could not be sent: {error!r}")
        finally:
            with self.changed:
                self.under_way -= 1
                self.changed.notify_all()

    def _watch(self) -> None:
        # Not before the first request, the configuration's own: until then Triton is not ready for calls, and crashes.
        self.begun.wait()
        while not self.ends.is_set() and not self.door.open():
            self.ends.wait(RETRY_SECONDS)  # the engine is not loaded yet
        self.is_open = True
        while not self.ends.wait(self.turns.wait() or IDLE_SECONDS):
            for call in self.turns.due(time.monotonic()):
                try:
                    call.watch()
                except Exception as error:
                    pb.Logger.log_error(f"a caller could not be looked after: {error!r}")
