"""Triton adapter of NAME_tokenize: STRING tensors in, token tensors out; one call of the tokenizer for a whole batch.

One bad request is answered alone, the others of its batch are not touched.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the net's cores; a served batch is small.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .admission import Bound, MetricsReader, metrics_address, net_of, server_arguments
from .encoding import InvalidInput, open_encoder, tensors
from .parameters import encoder_settings


class QueueFull(Exception):
    """A request that would wait for too long."""


class TritonPythonModel:
    """One instance of NAME_tokenize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer of the version folder."""
        self.encoder = open_encoder(Path(args["model_repository"]) / args["model_version"])
        self.bound = Bound.read(json.loads(args["model_config"]))
        self.queue = _queue(args["model_name"], self.bound)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        items: list[Any] = []
        answers: list[Any] = []
        if self.queue is not None:
            self.queue.prepare(len(requests))
        now = time.monotonic()
        for request in requests:
            try:
                arrays = self._arrays(request)
                self._admit(request, arrays, now)
                added = self._items(request, arrays)
            except (InvalidInput, QueueFull) as refusal:
                answers.append(refusal)
                continue
            answers.append(slice(len(items), len(items) + len(added)))
            items += added
        rows = self.encoder.encode(items) if items else []
        for at, answer in enumerate(answers):
            if isinstance(answer, slice):
                refused = (row for row in rows[answer] if isinstance(row, Exception))
                answers[at] = next(refused, rows[answer])
        made = iter(tensors([answer for answer in answers if isinstance(answer, list)], self.encoder.settings))
        return [_response(next(made)) if isinstance(answer, list) else _refusal(answer) for answer in answers]

    def _arrays(self, request: Any) -> dict[str, Any]:
        arrays = {}
        for name in self.encoder.fields:
            tensor = pb.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise InvalidInput(f"{name} is missing")
            arrays[name] = tensor.as_numpy()
        return arrays

    def _admit(self, request: Any, arrays: dict[str, Any], now: float) -> None:
        if self.queue is None:
            return
        rows = len(arrays[self.encoder.fields[0]])
        if not self.queue.admission.take(rows, now, 1e-6 * request.timeout()):
            raise QueueFull(
                "[hfx:QUEUE_FULL] The model has more to do than it can answer in time. Send fewer requests at a time, "
                "or try again later."
            )

    def _items(self, request: Any, arrays: dict[str, Any]) -> list[Any]:
        try:  # here, as other steps don't know what is none of theirs
            encoder_settings(request.parameters(), self.encoder.settings.task)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
        return self.encoder.items(arrays)


def _response(arrays: dict[str, Any]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in arrays.items()])


def _refusal(refusal: Exception) -> Any:
    code = pb.TritonError.UNAVAILABLE if isinstance(refusal, QueueFull) else pb.TritonError.INVALID_ARG
    return pb.InferenceResponse(error=pb.TritonError(str(refusal), code))


def _queue(model: str, bound: Bound) -> MetricsReader | None:
    """What bounds the queue of the net; None without a bound, or without metrics to know the queue by."""
    address = metrics_address(server_arguments(os.getppid()))
    if address is None:
        pb.Logger.log_warn(
            f"{model}: without metrics (--allow-metrics=true) the queue of {net_of(model)} has no bound."
        )
    if address is None or not (bound.requests or bound.seconds):
        return None
    return MetricsReader(net_of(model), address, bound)
