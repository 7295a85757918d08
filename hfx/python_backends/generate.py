"""Triton adapter of NAME_stream: one engine for all callers; pieces of text where `stream` is set, else one response.

`execute` only hands requests over, so that the next ones may come while these run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the engine's cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .engine.errors import DoesNotFit, Draining, EngineError, InvalidRequest
from .generation.generator import TextGenerator
from .generation.results import Piece
from .generation.streams import TextStream
from .serving.dispatcher import Dispatcher
from .serving.metrics import MetricsPublisher
from .serving.relay_server import RelayServer
from .serving.request import ActiveRequest, CancelRegistry, GenerateRequest, parse_request
from .serving.response_writer import Channel, Reply, reason_of
from .serving.triton_channel import TritonChannel

CANCELLED = Piece("", finish_reason="cancelled")
LAST_RESPONSES_SECONDS = 5.0  # to send callers that the engine has closed


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
        self.registry = CancelRegistry()
        self.refused: Counter[str] = Counter()
        self.under_way = 0
        self.changed = threading.Condition()
        self.draining = False
        self.dispatcher = Dispatcher(pb.Logger.log_error)
        self.metrics = MetricsPublisher(
            pb.MetricFamily, config["name"].removesuffix("_stream"), self.generator.engine.stats, self.refused
        )
        self.relays = RelayServer(config["name"], self._take, self.registry.cancel)

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
            self.changed.wait_for(lambda: not self.under_way, LAST_RESPONSES_SECONDS)
        self.dispatcher.close()
        self.relays.close()
        self.metrics.close()

    def _take(self, values: Iterable[tuple[str, list[Any]]], channel: Channel, request_id: str) -> None:
        reply = Reply(channel)
        try:
            request = parse_request(values)
        except (InvalidRequest, DoesNotFit) as refusal:
            self._refuse(reply, refusal)
            return
        if request.cancels:
            self.registry.cancel(request.cancels)
            self.dispatcher.responses.put([(reply, [CANCELLED], None)])
        elif self.draining:
            self._refuse(reply, Draining("the server is stopping", "Send the request to another"))
        else:
            self._begin(reply, request, request_id)

    def _begin(self, reply: Reply, request: GenerateRequest, request_id: str) -> None:
        active = ActiveRequest(reply, partial(self._open, request), request.deadline, partial(self._ended, request_id))
        self.registry.add(request_id, active.cancel)
        with self.changed:
            self.under_way += 1
        self.dispatcher.submit(active, len(request.text))

    def _open(self, request: GenerateRequest) -> TextStream:
        open_stream = self.generator.stream if request.streams else self.generator.whole
        timeout = None if request.deadline is None else max(request.deadline - time.monotonic(), 0.0)
        return open_stream(request.text, timeout=timeout, **request.fields)

    def _ended(self, request_id: str, request: ActiveRequest, error: Exception | None) -> None:
        self.registry.remove(request_id, request.cancel)
        if error is not None:
            self._count(error)
        with self.changed:
            self.under_way -= 1
            self.changed.notify_all()

    def _refuse(self, reply: Reply, refusal: EngineError) -> None:
        self._count(refusal)
        self.dispatcher.responses.put([(reply, [], refusal)])

    def _count(self, error: Exception) -> None:
        reason = reason_of(error)
        if reason is not None:
            with self.changed:
                self.refused[reason] += 1
        elif not isinstance(error, EngineError):  # a bug
            pb.Logger.log_error(f"a request ended with {error!r}")
