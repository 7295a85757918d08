"""Triton adapter of `backend: "onnxruntime"`: one instance of one model.

ragged.py runs batches, and sessions.py opens sessions.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from ..errors import EngineError, with_reason
from ..large_loads import LoadServer
from ..large_requests import LARGE, SECONDS, Cancelled, LargeRequest, LargeRequests, Turns, refusal
from ..serving.ipc import publication
from ..serving.triton_channel import TritonChannel, cancellation, ended_by, name_of
from .config import model_file, seconds
from .ragged import InvalidShape, Layout, Request, answer, check
from .sessions import Outputs, open_session

# Looking up whether a request was cancelled takes 54 µs: it pays if a request's share of a run takes this long.
LOOKED_UP_SECONDS = 1e-3


class TritonPythonModel:
    """A model in ONNX Runtime."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session that the configuration describes, and check that the two agree."""
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"])
        self.outputs = tuple(each["name"] for each in config["output"])
        path = model_file(config, folder / args["model_version"])
        kind, device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        self.session = open_session(config, path, kind, device_id)
        self.layout = Layout.read(config)
        check(self.layout, config, self.session)
        self.seconds = 0.0  # of the last run, each request's share
        self.turns = Turns()
        self.large = LargeRequests(self.turns, seconds(config, "max_queue_seconds", SECONDS))
        self.loads = LoadServer(args["model_name"], publication(folder), self.large.load)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Return one response for each request, in order; None if a request is large, whose response comes later.

        Triton has already refused requests that lack a required input.
        """
        read = [self._read(request) for request in requests]
        for name in filter(None, map(ended_by, requests)):
            self.large.end(name)
        large, small = list[tuple[Any, Request]](), list[tuple[Any, Request]]()
        for request, each in zip(requests, read, strict=True):
            (large if self.layout.elements(each.feed) > LARGE else small).append((request, each))
        responses = self._responses(small)
        if not large:
            return responses
        for (request, _), response in zip(small, responses, strict=True):
            request.get_response_sender().send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        for request, each in large:
            self._take(request, each)
        return None

    def finalize(self) -> None:
        """Stop the threads of large requests; Triton has no open request by now."""
        self.loads.close()
        self.large.close()

    def _responses(self, requests: list[tuple[Any, Request]]) -> list[Any]:
        """Return the responses to small requests."""
        looked_up = self.seconds >= LOOKED_UP_SECONDS
        cancelled = [looked_up and request.is_cancelled() for request, _ in requests]
        live = [each for (_, each), gone in zip(requests, cancelled, strict=True) if not gone]
        with self.turns.small():
            began = time.perf_counter()
            answers = answer(self.session, self.layout, live)
            if live:
                self.seconds = (time.perf_counter() - began) / len(live)
        responses = map(_response, answers, [each.wanted for each in live])
        return [cancellation() if gone else next(responses) for gone in cancelled]

    def _take(self, request: Any, read: Request) -> None:
        channel = TritonChannel(request.get_response_sender())
        reply = partial(channel.answer, partial(_response, wanted=read.wanted))

        def run(goes_on: Callable[[int], bool]) -> Outputs | Exception:
            return answer(self.session, self.layout, [replace(read, goes_on=goes_on)])[0]

        elements, timeout = self.layout.elements(read.feed), 1e-6 * request.timeout()
        if not self.large.take(LargeRequest(elements, run, channel.is_cancelled, reply, name_of(request), timeout)):
            reply(refusal())

    def _read(self, request: Any) -> Request:
        requested = request.requested_output_names()
        wanted = tuple(name for name in self.outputs if name in requested) or self.outputs
        given = {tensor.name(): tensor for tensor in request.inputs()}
        feed = {name: given[name].as_numpy() for name in self.layout.inputs if name in given}
        return Request(feed, wanted, lambda _: not request.is_cancelled())


def _response(outputs: Any, wanted: tuple[str, ...]) -> Any:
    if isinstance(outputs, InvalidShape):
        return pb.InferenceResponse(error=pb.TritonError(f"{outputs}.", pb.TritonError.INVALID_ARG))
    if isinstance(outputs, Cancelled):
        return cancellation()
    if isinstance(outputs, EngineError):
        error = pb.TritonError(with_reason(outputs.reason, outputs), getattr(pb.TritonError, outputs.reason.code))
        return pb.InferenceResponse(error=error)
    if isinstance(outputs, Exception):
        error = pb.TritonError(f"the model could not be run: {outputs}", pb.TritonError.INTERNAL)
        return pb.InferenceResponse(error=error)
    return pb.InferenceResponse([pb.Tensor(name, outputs[name]) for name in wanted])
