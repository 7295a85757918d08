"""Triton adapter of `backend: "onnxruntime"`: one instance of one model.

How a batch is run stands in ragged.py, how a session is opened in sessions.py.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .config import model_file
from .ragged import Cancelled, InvalidShape, Layout, Request, answer, check
from .sessions import open_session

# Whether a request was cancelled costs 54 µs: it is looked up where a request's share of a run is so long.
LOOKED_UP_SECONDS = 1e-3


class TritonPythonModel:
    """A model in ONNX Runtime or OpenVINO."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session that the configuration asks for, and hold the two against each other."""
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"])
        self.outputs = tuple(each["name"] for each in config["output"])
        path = model_file(config, folder / args["model_version"])
        kind, device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        self.session = open_session(config, path, kind, device_id)
        self.layout = Layout.read(config)
        check(self.layout, config, self.session)
        self.seconds = 0.0  # of the last run, each request's share

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order. Triton has refused what lacks an input that is not optional."""
        looked_up = self.seconds >= LOOKED_UP_SECONDS
        cancelled = [looked_up and request.is_cancelled() for request in requests]
        live = [request for request, gone in zip(requests, cancelled, strict=True) if not gone]
        wanted = [self._wanted(request) for request in live]
        began = time.perf_counter()
        answers = answer(self.session, self.layout, list(map(self._read, live, wanted)))
        if live:
            self.seconds = (time.perf_counter() - began) / len(live)
        responses = map(_response, answers, wanted)
        return [_cancellation() if gone else next(responses) for gone in cancelled]

    def _wanted(self, request: Any) -> tuple[str, ...]:
        asked = request.requested_output_names()
        return tuple(name for name in self.outputs if name in asked) or self.outputs

    def _read(self, request: Any, wanted: tuple[str, ...]) -> Request:
        given = {tensor.name(): tensor for tensor in request.inputs()}
        feed = {name: given[name].as_numpy() for name in self.layout.inputs if name in given}
        return Request(feed, wanted, request.is_cancelled)


def _cancellation() -> Any:
    return pb.InferenceResponse(error=pb.TritonError("The request was cancelled.", pb.TritonError.CANCELLED))


def _response(outputs: Any, wanted: tuple[str, ...]) -> Any:
    if isinstance(outputs, InvalidShape):
        return pb.InferenceResponse(error=pb.TritonError(f"{outputs}.", pb.TritonError.INVALID_ARG))
    if isinstance(outputs, Cancelled):
        return _cancellation()
    if isinstance(outputs, Exception):
        error = pb.TritonError(f"the model could not be run: {outputs}", pb.TritonError.INTERNAL)
        return pb.InferenceResponse(error=error)
    return pb.InferenceResponse([pb.Tensor(name, outputs[name]) for name in wanted])
