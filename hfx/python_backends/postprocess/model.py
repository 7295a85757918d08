"""Triton adapter of NAME_postprocess: the net's outputs in, the task's answers out.

One bad request is answered alone, the others of its batch are not touched.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import triton_python_backend_utils as pb

from .inputs import InvalidInput
from .tasks import answer_each, open_postprocessor


class TritonPythonModel:
    """One instance of NAME_postprocess."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the task's postprocessor from the version folder."""
        self.postprocessor = open_postprocessor(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        read = [self._read(request) for request in requests]
        answers = iter(answer_each(self.postprocessor, [each for each in read if not isinstance(each, InvalidInput)]))
        return [_response(each if isinstance(each, InvalidInput) else next(answers)) for each in read]

    def _read(self, request: Any) -> dict[str, Any] | InvalidInput:
        try:
            return self._tensors(request)
        except InvalidInput as refusal:
            return refusal

    def _tensors(self, request: Any) -> dict[str, Any]:
        arrays = {}
        for name in (*self.postprocessor.required, *self.postprocessor.optional):
            tensor = pb.get_input_tensor_by_name(request, name)
            if tensor is not None:
                arrays[name] = tensor.as_numpy()
            elif name in self.postprocessor.required:
                raise InvalidInput(f"{name} is missing")
        self._add_parameters(arrays, request.parameters())
        return arrays

    def _add_parameters(self, arrays: dict[str, Any], parameters: str) -> None:
        """Add the settings among Triton's request parameters (a JSON object); NAME_tokenize has checked their types."""
        if parameters in ("", "{}"):
            return
        values = json.loads(parameters)
        rows = len(next(iter(arrays.values())))
        for name in values.keys() & set(self.postprocessor.optional):
            array = np.full((rows, 1), values[name])
            if not np.array_equal(arrays.setdefault(name, array), array):
                raise InvalidInput(f"{name} is {values[name]}, but its tensor says otherwise: send one of them")


def _response(answers: dict[str, Any] | InvalidInput) -> Any:
    if isinstance(answers, InvalidInput):
        return pb.InferenceResponse(error=pb.TritonError(str(answers), pb.TritonError.INVALID_ARG))
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in answers.items()])
