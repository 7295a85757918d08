"""Triton adapter of NAME_tokenize: makes token tensors from STRING tensors, with one tokenizer call for a whole batch.

An invalid request is answered with an error, and the other requests of its batch are not affected. A large request is
tokenized in parts, after the small ones of its batch are answered (large_requests.py). Settings pass
through this step to the last step, and a setting that the caller left out passes as zeros: Triton puts requests with
and without an input into different batches, so the net's batches would be small.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the net's cores; a served batch is small.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import triton_python_backend_utils as pb

from .admission import Bound, MetricsReader, metrics_address, net_of, server_arguments
from .checks import encoder_settings
from .encoding import Row, open_encoder, pausing, tensors
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
from .large_loads import least_load
from .large_requests import LARGE, Cancelled, LargeRequest, LargeRequests, Turns, refusal
from .long_texts import has_windows
from .serving.ipc import publication
from .serving.triton_channel import TritonChannel, cancellation, ended_by, name_of
from .tasks import TASKS

MOST = 2**31 - 1  # of a setting; a larger value has the same effect
BYTES = 4  # of a token, as in English


class TritonPythonModel:
    """One instance of NAME_tokenize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer of the version folder."""
        folder = Path(args["model_repository"])
        self.encoder = open_encoder(folder / args["model_version"])
        config = json.loads(args["model_config"])
        optional = [each for each in config["input"] if each.get("optional")]
        self.settings = {each["name"]: pb.triton_string_to_numpy(each["data_type"]) for each in optional}
        self.bound = Bound.read(config)
        self.queue = _queue(args["model_name"], self.bound)
        self.turns = Turns()
        load = partial(least_load, net_of(args["model_name"]), publication(folder))
        self.large = LargeRequests(self.turns, self.bound.seconds, load)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Return one response for each request, in order; None if a request is large, whose response comes later."""
        if self.queue is not None:
            self.queue.prepare(len(requests))
        now = time.monotonic()
        for name in filter(None, map(ended_by, requests)):
            self.large.end(name)
        large, small = list[tuple[Any, Any, int]](), list[tuple[Any, Any]]()
        for request in requests:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            tokens = self._estimate(arrays, request.parameters())
            if tokens > LARGE:
                large.append((request, arrays, tokens))
            else:
                small.append((request, arrays))
        with self.turns.small():
            responses = self._responses(small, now)
        if not large:
            return responses
        for (request, _), response in zip(small, responses, strict=True):
            request.get_response_sender().send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        for request, arrays, tokens in large:
            self._take(request, arrays, tokens, now)
        return None

    @property
    def tokenizing(self) -> frozenset[str]:
        """The settings that this step reads, and does not pass on."""
        return TASKS[self.encoder.settings.task].tokenizing

    def finalize(self) -> None:
        """Stop the threads of large requests; Triton has no open request by now."""
        self.large.close()

    def _estimate(self, arrays: Tensors, parameters: str) -> int:
        """Estimate the number of tokens of a request before its texts are tokenized."""
        most = MOST if has_windows(self.encoder.settings, arrays, parameters) else self.encoder.settings.max_length
        texts = [arrays[name] for name in self.encoder.fields if name in arrays and arrays[name].dtype == np.object_]
        sequences = max((array.size for array in texts), default=0)
        return sum(
            sequences // max(1, array.size) * sum(min(len(text) // BYTES + 1, most) for text in array.flat)
            for array in texts
        )

    def _responses(self, requests: list[tuple[Any, Any]], now: float) -> list[Any]:
        """Return the responses to small requests."""
        items: list[Any] = []
        answers: list[Any] = []
        for request, arrays in requests:
            try:
                self._accept(request, arrays, now)
                added = self.encoder.items(arrays)
            except (InvalidInput, EngineError) as error:
                answers.append(error)
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
            for (_, arrays), answer in zip(requests, answers, strict=True)
        ]

    def _take(self, request: Any, arrays: dict[str, Any], tokens: int, now: float) -> None:
        """Take a large request of about so many `tokens`, or refuse it."""
        channel = TritonChannel(request.get_response_sender())
        run, reply = partial(self._rows, arrays, tokens), partial(channel.answer, partial(self._answer, arrays))
        large = LargeRequest(tokens, run, channel.is_cancelled, reply, name_of(request), 1e-6 * request.timeout())
        try:
            self._accept(request, arrays, now)
            if not self.large.take(large):
                raise refusal()
        except (InvalidInput, EngineError) as error:
            reply(error)

    def _rows(self, arrays: Tensors, tokens: int, goes_on: Callable[[int], bool]) -> list[Row] | Exception:
        """Return the rows of a large request, or the error of the first one that has an error."""

        def pause() -> None:
            if not goes_on(0):
                raise Cancelled

        encoder, rows = pausing(self.encoder, pause), list[Row]()
        try:
            items = encoder.items(arrays)
        except (InvalidInput, EngineError, Cancelled) as error:
            return error
        for item in items:
            [row] = encoder.encode([item])
            if isinstance(row, Exception):
                return row
            rows.append(row)
            if not goes_on(tokens // len(items)):
                return Cancelled()
        return rows

    def _answer(self, arrays: Tensors, result: list[Row] | Exception) -> Any:
        """Return the response to a large request."""
        if isinstance(result, Exception):
            return _refusal(result)
        [made] = tensors([result], self.encoder.settings)
        return _response({**made, **self._settings(arrays, len(result))})

    def _accept(self, request: Any, arrays: dict[str, Any], now: float) -> None:
        """Check a request, and add the settings among its parameters to `arrays`. Raises InvalidInput, EngineError."""
        self._check(arrays)
        self._admit(request, arrays, now)
        self._add_parameters(request, arrays)

    def _check(self, arrays: Tensors) -> None:
        for name in self.encoder.fields:
            if name not in arrays:
                raise InvalidInput(IS_MISSING % name)
        for name in (self.settings.keys() & arrays.keys()) - self.tokenizing:
            if self.settings[name] is np.object_:
                if any(not text for row in table(name, arrays) for text in row):  # it would mean: left out
                    raise InvalidInput(f"{name} has an empty text")
            elif self.settings[name] is np.int32:
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
            elif self.settings[name] is np.int32:
                if name not in self.tokenizing:
                    _refuse_below_one(name, value)
                value = max(-1, min(value, MOST))
            array = np.full((len(arrays[self.encoder.fields[0]]), 1), value, self.settings[name])
            if not np.array_equal(arrays.setdefault(name, array), array):
                raise InvalidInput(f"{name} is {parameters[name]}, but its tensor says otherwise: send one of them")

    def _settings(self, arrays: Tensors, rows: int) -> Tensors:
        return {
            name: arrays[name] if name in arrays else np.full((rows, 1), b"" if dtype is np.object_ else 0, dtype)
            for name, dtype in self.settings.items()
            if name not in self.tokenizing
        }


def _refuse_below_one(name: str, value: Any) -> None:
    """Raise InvalidInput for a number below 1; a 0 would mean that the setting is left out."""
    least = np.min(value, initial=1)
    if least < 1:
        raise InvalidInput(IS_BELOW_ONE % (name, least))


def _response(arrays: dict[str, Any]) -> Any:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in arrays.items()])


def _refusal(error: Exception) -> Any:
    if isinstance(error, Cancelled):
        return cancellation()
    if not isinstance(error, (EngineError, InvalidInput)):
        error = Unexpected(error)
    if isinstance(error, Unexpected):
        pb.Logger.log_error(f"a request ended with an unexpected error: {error.cause!r}")
    text, code = str(error), "INVALID_ARG"
    if isinstance(error, EngineError):
        text, code = with_reason(error.reason, error), error.reason.code
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
