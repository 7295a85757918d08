"""Triton adapter of NAME_tokenize: makes token tensors from STRING tensors, with one tokenizer call for a whole batch.

An invalid request is answered with an error, and the other requests of its batch are not affected. Settings pass
through this step to the last step, and a setting that the caller left out passes as zeros: Triton puts requests with
and without an input into different batches, so the net's batches would be small.
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
from .errors import (
    IS_BELOW_ONE,
    IS_MISSING,
    IS_OVERLOADED,
    TRY_AGAIN,
    EngineError,
    InvalidInput,
    QueueFull,
    Unexpected,
    with_reason,
)
from .inputs import Tensors, table
from .tasks import TOKENIZING

MOST = 2**31 - 1  # of a setting; a larger value has the same effect


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
        """Return one response for each request, in order."""
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
            except (InvalidInput, EngineError) as refusal:
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
                raise InvalidInput(IS_MISSING % name)
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
            raise QueueFull(IS_OVERLOADED, TRY_AGAIN)

    def _add_parameters(self, request: Any, arrays: dict[str, Any]) -> None:
        """Add the settings among the request's parameters to `arrays`, for all rows. Raises InvalidInput."""
        try:  # checked here, because other steps can't tell an unknown parameter from another step's parameter
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
    """Raise InvalidInput for a number below 1; a 0 would mean that the setting is left out."""
    least = np.min(value, initial=1)
    if least < 1:
        raise InvalidInput(IS_BELOW_ONE % (name, least))


def _refuse_empty(name: str, arrays: Tensors) -> None:
    """Raise InvalidInput for an empty text, which would mean that the setting is left out."""
    if any(not text for row in table(name, arrays) for text in row):
        raise InvalidInput(f"{name} has an empty text")


def _response(arrays: dict[str, Any]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in arrays.items()])


def _refusal(refusal: Exception) -> Any:
    if isinstance(refusal, Unexpected):
        pb.Logger.log_error(f"a request ended with an unexpected error: {refusal.cause!r}")
    text, code = str(refusal), "INVALID_ARG"
    if isinstance(refusal, EngineError):
        text, code = with_reason(refusal.reason, refusal), refusal.reason.code
    return pb.InferenceResponse(error=pb.TritonError(text, getattr(pb.TritonError, code)))


def _queue(model: str, bound: Bound) -> MetricsReader | None:
    """Return the reader by which the net's queue is bounded; None without a bound, or without metrics of the queue."""
    address = metrics_address(server_arguments(os.getppid()))
    if address is None:
        pb.Logger.log_warn(
            f"{model}: without metrics (--allow-metrics=true) the queue of {net_of(model)} has no bound."
        )
    if address is None or not (bound.requests or bound.seconds):
        return None
    return MetricsReader(model, address, bound)
