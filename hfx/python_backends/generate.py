"""Triton adapter of NAME_stream: one engine for all callers; pieces of text where `stream` is set, else one response.

Owns the instance's life. `execute` only hands requests over, so that the next ones may come while these run; what
becomes of them is decided in `responses` and `generation`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the engine's cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .engine.errors import Draining, EngineError, InvalidRequest
from .generation.generator import TextGenerator
from .generation.results import Piece
from .generation.streams import TextStream
from .responses.channel import TritonChannel
from .responses.codes import reason_of
from .responses.desk import Desk
from .responses.exchange import Exchange
from .responses.figures import Figure, counts, histograms
from .responses.orders import Order, read_order
from .responses.outbox import Channel, Reply
from .responses.publication import Publication
from .responses.register import Register
from .responses.task import Task

CANCELLED = Piece("", finish_reason="cancelled")
LEAVE_SECONDS = 5.0  # for callers to be told that the engine has closed


class TritonPythonModel:
    """The engine's instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model of the version folder as the configuration's parameters say."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.generator = TextGenerator.open(
            Path(args["model_repository"]) / args["model_version"],
            device=parameters["device"],
            runtime=parameters.get("cpu_runtime"),
            slots=int(parameters["slots"]),
            max_queue=int(parameters["max_queue_size"]),
            threads=int(parameters["intra_op_thread_count"]),
        )
        self.drain_seconds = float(parameters["drain_seconds"])
        self.generator.warm_up()
        self.register = Register()
        self.refused: Counter[str] = Counter()
        self.under_way = 0
        self.changed = threading.Condition()
        self.draining = False
        self.desk = Desk(pb.Logger.log_error)
        self.publication = Publication(config["name"].removesuffix("_stream"), self._counts, self._histograms)
        self.exchange = Exchange(config["name"], self._take, self.register.cancel)

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            values = ((tensor.name(), tensor.as_numpy().reshape(-1).tolist()) for tensor in request.inputs())
            self._take(values, TritonChannel(request.get_response_sender()), request.request_id())

    def finalize(self) -> None:
        """Let requests that were taken finish within the drain time, end the others with their errors, and close."""
        with self.changed:
            self.draining = True
            self.changed.wait_for(lambda: not self.under_way, self.drain_seconds)
        self.generator.close()
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way, LEAVE_SECONDS)
        self.desk.close()
        self.exchange.close()
        self.publication.close()

    def _take(self, values: Iterable[tuple[str, list[Any]]], channel: Channel, request_id: str) -> None:
        reply = Reply(channel)
        try:
            order = read_order(values)
        except InvalidRequest as refusal:
            self._refuse(reply, refusal)
            return
        if order.cancels:
            self.register.cancel(order.cancels)
            self.desk.outbox.put([(reply, [CANCELLED], None)])
        elif self.draining:
            self._refuse(reply, Draining("the server is stopping", "Send the request to another"))
        else:
            self._begin(reply, order, request_id)

    def _begin(self, reply: Reply, order: Order, request_id: str) -> None:
        task = Task(reply, partial(self._open, order, request_id), order.deadline, partial(self._ended, request_id))
        self.register.add(request_id, task.cancel)
        with self.changed:
            self.under_way += 1
        self.desk.take(task, len(order.text))

    def _open(self, order: Order, request_id: str) -> TextStream:
        open_stream = self.generator.stream if order.streams else self.generator.whole
        timeout = None if order.deadline is None else max(order.deadline - time.monotonic(), 0.0)
        return open_stream(order.text, request_id=request_id, timeout=timeout, **order.fields)

    def _ended(self, request_id: str, task: Task, error: Exception | None) -> None:
        self.register.remove(request_id, task.cancel)
        if error is not None:
            self._count(error)
        with self.changed:
            self.under_way -= 1
            self.changed.notify_all()

    def _refuse(self, reply: Reply, refusal: EngineError) -> None:
        self._count(refusal)
        self.desk.outbox.fail(reply, refusal)

    def _count(self, error: Exception) -> None:
        reason = reason_of(error)
        if reason is not None:
            with self.changed:
                self.refused[reason] += 1
        elif not isinstance(error, EngineError):  # a bug: callers are told, and so is whoever reads the log
            pb.Logger.log_error(f"a request ended with {error!r}")

    def _counts(self) -> Iterator[Figure]:
        return counts(self.generator.engine.stats(), self.refused)

    def _histograms(self) -> Iterator[Figure]:
        return histograms(self.generator.engine.stats())
