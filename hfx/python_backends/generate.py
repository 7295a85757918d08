"""Triton adapter of NAME_stream: one engine for all callers.

A request gets pieces of text if `stream` is set, and otherwise one response. `execute` only passes requests to the
dispatcher, so that the next requests may come while these run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the engine's cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .errors import QUEUE_FULL, Draining, EngineError, InvalidRequest, QueueFull, reason_of
from .generation.generator import TextGenerator
from .generation.pieces import Piece
from .generation.streams import OpenPieces
from .serving.dispatcher import Dispatcher
from .serving.ipc import publication
from .serving.metrics import MetricsPublisher
from .serving.relay_server import RelayServer
from .serving.request import CancelRegistry, Channel, GenerateRequest, Tensors
from .serving.traces import SpanWriter, trace_of
from .serving.triton_channel import TritonChannel

CANCELLED = Piece("", finish_reason="cancelled")
LAST_RESPONSES_SECONDS = 5.0  # for sending callers the error that the engine has closed


class TritonPythonModel:
    """The one instance of NAME_stream, which has the engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model in the version folder with the configuration's parameters, and warm it up."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.generator = TextGenerator.open(
            Path(args["model_repository"]) / args["model_version"],
            device=parameters["device"],
            device_id=int(args["model_instance_device_id"]),
            runtime=parameters.get("cpu_runtime"),
            slots=int(parameters["slots"]),
            max_queue=int(parameters["max_queue_size"]),
            max_queue_seconds=float(parameters.get("max_queue_seconds", 0)),
            threads=int(parameters["intra_op_thread_count"]),
            prefix_cache_mb=int(parameters["prefix_cache_mb"]) if "prefix_cache_mb" in parameters else None,
        )
        self.drain_seconds = float(parameters["drain_seconds"])
        self.generator.warm_up()
        self.registry = CancelRegistry()
        self.spans = SpanWriter(pb.Logger.log_warn)
        self.refused: Counter[str] = Counter()
        self.under_way = 0
        self.direct = 0  # of these, requests that came from Triton, not from a relay
        self.changed = threading.Condition()
        self.draining = False
        self.dispatcher = Dispatcher(self._opener, self._ended, pb.Logger.log_error)
        self.metrics = MetricsPublisher(
            pb.MetricFamily, config["name"].removesuffix("_stream"), self.generator.engine.stats, self.refused
        )
        self.folder = args["model_repository"]
        self.published = publication(self.folder)
        self.generator.engine.call_when_failed(self._end_process)
        self.relays = RelayServer(
            config["name"],
            self._take_relayed,
            self.registry.cancel,
            self._most_relayed,
            self._count_full,
            self.published,
        )

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; their responses come later."""
        for request in requests:
            tensors = ((tensor.name(), tensor.as_numpy().reshape(-1).tolist()) for tensor in request.inputs())
            channel = TritonChannel(request.get_response_sender())
            taken = GenerateRequest(channel, request.request_id(), trace_of(request))
            self._take(taken, tensors, request.parameters())

    def is_ready(self) -> bool:
        """Whether the model takes requests (called by Triton 26.03 and later); a loaded model has been warmed up."""
        return not self.draining and self.generator.engine.is_working()

    def finalize(self) -> None:
        """Let open requests finish within the drain time, end the remaining ones with an error, and close.

        If another publication has replaced the model in its folder, the engine first serves its relay until the relay
        has disconnected. It does not when the server ends, because Triton may then end the relay after the engine.
        """
        deadline = time.monotonic() + self.drain_seconds
        if publication(self.folder) != self.published:
            self.relays.wait_for_relays(self.drain_seconds)
        with self.changed:
            self.draining = True
            self.changed.wait_for(lambda: not self.under_way, max(0.0, deadline - time.monotonic()))
        self.generator.close()
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way, LAST_RESPONSES_SECONDS)
        self.dispatcher.close()
        self.relays.close()
        self.metrics.close()
        self.spans.close()

    def _end_process(self, failure: BaseException) -> None:
        """End this process, whose engine has failed, so that the server replaces it.

        The open requests get their errors first: Triton would end none of them with the process.
        """
        pb.Logger.log_error(f"the engine has failed, and its process ends: {failure!r}")
        with self.changed:
            self.changed.wait_for(lambda: not self.under_way, LAST_RESPONSES_SECONDS)
        self.metrics.close()
        os._exit(1)

    def _most_relayed(self) -> int | None:
        """Return how many requests of relays may be under way; None for any number."""
        most = self.generator.engine.most_open()
        return None if most is None else most - self.direct

    def _take_relayed(self, tensors: Tensors, parameters: str, channel: Channel, request_id: str, trace: str) -> None:
        self._take(GenerateRequest(channel, request_id, trace), tensors, parameters, has_one_response=True)

    def _take(
        self, request: GenerateRequest, tensors: Tensors, parameters: str, has_one_response: bool = False
    ) -> None:
        try:
            request.parse(tensors, parameters)
            if request.streams and has_one_response:
                allowed = "false, as a plain call has one answer; NAME_stream answers in pieces"
                raise InvalidRequest("stream", True, allowed)
            if self.draining and not request.cancels:
                raise Draining("the server is stopping", "Send the request to another")
            most = self.generator.engine.most_open()
            if most is not None and self.under_way >= most and not request.cancels:
                raise QueueFull
        except EngineError as refusal:
            request.answer([], refusal)
        if request.cancels and not request.is_answered:
            self.registry.cancel(request.cancels)
            request.answer([CANCELLED])
        self.registry.add(request)
        with self.changed:
            self.under_way += 1
            self.direct += isinstance(request.channel, TritonChannel)
        self.dispatcher.submit(request)

    def _opener(self, request: GenerateRequest) -> OpenPieces:
        opener = self.generator.live if request.streams else self.generator.joined
        timeout = None if request.deadline is None else max(request.deadline - time.monotonic(), 0.0)
        return opener(request.text, request.settings, timeout)

    def _ended(self, request: GenerateRequest, error: Exception | None) -> None:
        self.registry.remove(request)
        if request.trace:
            self.spans.write(request.trace, request.traced)
            request.traced.clear()  # its entries refer to the request
        if error is not None:
            self._count(error)
        with self.changed:
            self.under_way -= 1
            self.direct -= isinstance(request.channel, TritonChannel)
            self.changed.notify_all()

    def _count_full(self, requests: int) -> None:
        with self.changed:
            self.refused[QUEUE_FULL.refusal] += requests

    def _count(self, error: Exception) -> None:
        refusal = reason_of(error).refusal
        if refusal:
            with self.changed:
                self.refused[refusal] += 1
        elif not isinstance(error, EngineError):  # a bug
            pb.Logger.log_error(f"a request ended with {error!r}")
