"""Triton adapter of NAME_tokenize: STRING tensors in, token tensors out; one call of the tokenizer for a whole batch.

One bad request is answered alone, the others of its batch are not touched. Settings, which callers may leave out, go
through here to the last step, as zeros where they are left out: Triton puts requests with and without an input into
different batches, and the net's would be small.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the net's cores; a served batch is small.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import triton_python_backend_utils as pb

from .admission import Bound, MetricsReader, metrics_address, net_of, server_arguments
from .checks import encoder_settings
from .encoding import open_encoder, tensors
from .errors import InvalidInput, QueueFull, Unexpected, with_reason
from .inputs import Tensors, table
from .tasks import TOKENIZING

MOST = 2**31 - 1  # of a setting: more is as much


class TritonPythonModel:
    """One instance of NAME_tokenize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer of the version folder."""
        self.encoder = open_encoder(Path(args["model_repository"]) / args["model_version"])
        config = json.loads(args["model_config"])
        optional = [each for each in config["input"] if each.get("optional")]
        self.settings = {each["name"]: pb.triton_string_to_numpy(each["data_type"]) for each in optional}
        self.bound = Bound.read(config)
        self.queue = _queue(args["model_name"], self.bound)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        items: list[Any] = []
        answers: list[Any] = []
        if self.queue is not None:
            self.queue.prepare(len(requests))
        now = time.monotonic()
        given = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        for request, arrays in zip(requests, given, strict=True):
            try:
                self._check(arrays)
                self._admit(request, arrays, now)
                self._add_parameters(request, arrays)
                added = self.encoder.items(arrays)
            except (InvalidInput, QueueFull) as refusal:
                answers.append(refusal)
                continue
            answers.append(slice(len(items), len(items) + len(added)))
            items += added
        rows = self.encoder.encode(items) if items else []
        if self.queue is not None and items:
            taken = sum(isinstance(answer, slice) for answer in answers)
            self.queue.admission.tokenized(taken, time.monotonic() - now)
        for at, answer in enumerate(answers):
            if isinstance(answer, slice):
                refused = (row for row in rows[answer] if isinstance(row, Exception))
                answers[at] = next(refused, rows[answer])
        made = iter(tensors([answer for answer in answers if isinstance(answer, list)], self.encoder.settings))
        return [
            _response({**next(made), **self._settings(arrays, len(answer))})
            if isinstance(answer, list)
            else _refusal(answer)
            for arrays, answer in zip(given, answers, strict=True)
        ]

    def _check(self, arrays: Tensors) -> None:
        for name in self.encoder.fields:
            if name not in arrays:
                raise InvalidInput(f"{name} is missing")
        for name in (self.settings.keys() & arrays.keys()) - TOKENIZING:
            if self.settings[name] is np.object_:
                _refuse_empty(name, arrays)
            elif self.settings[name] is not bool:
                _refuse_below_one(name, arrays[name])

    def _admit(self, request: Any, arrays: Tensors, now: float) -> None:
        if self.queue is None:
            return
        rows = len(arrays[self.encoder.fields[0]])
        if not self.queue.admission.take(rows, now, 1e-6 * request.timeout()):
            message = "The model has more to do than it can answer in time"
            raise QueueFull(message, "Send fewer requests at a time, or try again later.")

    def _add_parameters(self, request: Any, arrays: dict[str, Any]) -> None:
        """Add the settings among the request's parameters, for all of its rows. Raises InvalidInput."""
        try:  # here, as other steps don't know what is none of theirs
            parameters = encoder_settings(request.parameters(), self.encoder.settings.task, self.settings)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
        for name, value in parameters.items():
            if isinstance(value, str):
                value = value.encode()
            elif self.settings[name] is not bool:
                if name not in TOKENIZING:
                    _refuse_below_one(name, value)
                value = max(-1, min(value, MOST))
            array = np.full((len(arrays[self.encoder.fields[0]]), 1), value, self.settings[name])
            if not np.array_equal(arrays.setdefault(name, array), array):
                raise InvalidInput(f"{name} is {parameters[name]}, but its tensor says otherwise: send one of them")

    def _settings(self, arrays: Tensors, rows: int) -> Tensors:
        return {
            name: arrays[name] if name in arrays else np.full((rows, 1), b"" if dtype is np.object_ else 0, dtype)
            for name, dtype in self.settings.items()
            if name not in TOKENIZING
        }


def _refuse_below_one(name: str, value: Any) -> None:
    """Refuse numbers of which 0 would mean that they are left out."""
    least = np.min(value, initial=1)
    if least < 1:
        raise InvalidInput(f"{name} must be at least 1, not {least}")


def _refuse_empty(name: str, arrays: Tensors) -> None:
    """Refuse texts of which an empty one would mean that they are left out."""
    if any(not text for row in table(name, arrays) for text in row):
        raise InvalidInput(f"{name} has an empty text")


def _response(arrays: dict[str, Any]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in arrays.items()])


def _refusal(refusal: Exception) -> Any:
    if isinstance(refusal, QueueFull):
        error = pb.TritonError(with_reason(refusal.reason, refusal), pb.TritonError.UNAVAILABLE)
    elif isinstance(refusal, Unexpected):
        pb.Logger.log_error(f"a request ended with an unexpected error: {refusal.cause!r}")
        error = pb.TritonError(with_reason(refusal.reason, refusal), pb.TritonError.INTERNAL)
    else:
        error = pb.TritonError(str(refusal), pb.TritonError.INVALID_ARG)
    return pb.InferenceResponse(error=error)


def _queue(model: str, bound: Bound) -> MetricsReader | None:
    """What bounds the queue of the net; None without a bound, or without metrics to know the queue by."""
    address = metrics_address(server_arguments(os.getppid()))
    if address is None:
        pb.Logger.log_warn(
            f"{model}: without metrics (--allow-metrics=true) the queue of {net_of(model)} has no bound."
        )
    if address is None or not (bound.requests or bound.seconds):
        return None
    return MetricsReader(model, address, bound)
