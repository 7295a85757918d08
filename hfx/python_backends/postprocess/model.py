"""Triton adapter of NAME_postprocess: the net's outputs in, the task's answers out.

One bad request is answered alone, the others of its batch are not touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .inputs import InvalidInput
from .tasks import open_postprocessor


class TritonPythonModel:
    """One instance of NAME_postprocess."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the task's postprocessor from the version folder."""
        self.postprocessor = open_postprocessor(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            answers = self.postprocessor.answer(self._tensors(request))
        except InvalidInput as refusal:
            return pb.InferenceResponse(error=pb.TritonError(str(refusal), pb.TritonError.INVALID_ARG))
        return pb.InferenceResponse([pb.Tensor(name, array) for name, array in answers.items()])

    def _tensors(self, request: Any) -> dict[str, Any]:
        arrays = {}
        for name in (*self.postprocessor.required, *self.postprocessor.optional):
            tensor = pb.get_input_tensor_by_name(request, name)
            if tensor is not None:
                arrays[name] = tensor.as_numpy()
            elif name in self.postprocessor.required:
                raise InvalidInput(f"{name} is missing")
        return arrays
