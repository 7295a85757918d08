"""Triton adapter of NAME_postprocess: makes the task's answers from the net's outputs.

An invalid request is answered with an error, and the other requests of its batch are not affected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .tasks.inputs import read_request
from .tasks.postprocessing import answer_each, open_postprocessor


class TritonPythonModel:
    """One instance of NAME_postprocess."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the task's postprocessor from the version folder."""
        self.postprocessor = open_postprocessor(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response for each request, in order."""
        required, optional = self.postprocessor.required, self.postprocessor.optional
        tensors = [read_request(request, required, optional) for request in requests]
        return [_response(answers) for answers in answer_each(self.postprocessor, tensors)]


def _response(answers: dict[str, Any] | Exception) -> Any:
    if isinstance(answers, Exception):
        return pb.InferenceResponse(error=pb.TritonError(str(answers), pb.TritonError.INVALID_ARG))
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in answers.items()])
