"""Triton adapter of `backend: "onnxruntime"`: one instance of one model.

Owns requests and responses, and the completion of configurations; how a batch is run stands in ragged.py, how a
session is opened in sessions.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb

from .config import model_file
from .ragged import Layout, Request, answer, check
from .sessions import complete, open_session, signature


class TritonPythonModel:
    """A model in ONNX Runtime or OpenVINO."""

    @staticmethod
    def auto_complete_config(auto: Any) -> Any:
        """Fill in what a configuration leaves out, from the ONNX file."""
        config = auto.as_dict()
        if not (config["input"] and config["output"]):
            complete(auto, signature(model_file(config, Path(pb.get_model_dir()))))
        return auto

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session that the configuration asks for, and hold the two against each other."""
        config = json.loads(args["model_config"])
        path = model_file(config, Path(args["model_repository"]) / args["model_version"])
        kind, device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        self.session = open_session(config, path, kind, device_id)
        self.layout = Layout.read(config)
        check(self.layout, config, self.session)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        responses: list[Any] = [None] * len(requests)
        accepted: list[tuple[int, Request]] = []
        for at, request in enumerate(requests):
            read = self._read(request)
            missing = self.layout.missing(read.feed)
            if missing:
                responses[at] = _refused(f"{', '.join(missing)} is missing", pb.TritonError.INVALID_ARG)
            else:
                accepted.append((at, read))
        answers = answer(self.session, self.layout, [request for _, request in accepted])
        for (at, _), found in zip(accepted, answers, strict=True):
            responses[at] = _response(found)
        return responses

    def _read(self, request: Any) -> Request:
        feed = {}
        for name in self.layout.inputs:
            tensor = pb.get_input_tensor_by_name(request, name)
            if tensor is not None:
                feed[name] = tensor.as_numpy()
        asked = request.requested_output_names()
        return Request(feed, tuple(name for name in self.layout.outputs if name in asked) or self.layout.outputs)


def _response(found: Any) -> Any:
    if isinstance(found, Exception):
        return _refused(f"the model could not be run: {found}", pb.TritonError.INTERNAL)
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in found.items()])


def _refused(text: str, code: Any) -> Any:
    return pb.InferenceResponse(error=pb.TritonError(text, code))
