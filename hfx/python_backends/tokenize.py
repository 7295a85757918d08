"""Triton adapter of NAME_tokenize: STRING tensors in, token tensors out; one call of the tokenizer for a whole batch.

One bad request is answered alone, the others of its batch are not touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# Threads of the tokenizer would take the net's cores; a served batch is small.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import triton_python_backend_utils as pb

from .encoding import InvalidInput, open_encoder, tensors
from .parameters import encoder_settings


class TritonPythonModel:
    """One instance of NAME_tokenize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer of the version folder."""
        self.encoder = open_encoder(Path(args["model_repository"]) / args["model_version"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request, in order."""
        items: list[Any] = []
        answers: list[Any] = []
        for request in requests:
            try:
                added = self._items(request)
            except InvalidInput as refusal:
                answers.append(refusal)
                continue
            answers.append(slice(len(items), len(items) + len(added)))
            items += added
        rows = self.encoder.encode(items) if items else []
        return [self._response([answer] if isinstance(answer, InvalidInput) else rows[answer]) for answer in answers]

    def _items(self, request: Any) -> list[Any]:
        try:  # here, as other steps don't know what is none of theirs
            encoder_settings(request.parameters(), self.encoder.settings.task)
        except ValueError as error:
            raise InvalidInput(str(error)) from None
        arrays = {}
        for name in self.encoder.fields:
            tensor = pb.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise InvalidInput(f"{name} is missing")
            arrays[name] = tensor.as_numpy()
        return self.encoder.items(arrays)

    def _response(self, rows: list[Any]) -> Any:
        refusal = next((row for row in rows if isinstance(row, InvalidInput)), None)
        if refusal is not None:
            return pb.InferenceResponse(error=pb.TritonError(str(refusal), pb.TritonError.INVALID_ARG))
        arrays = tensors(rows, self.encoder.settings)
        return pb.InferenceResponse([pb.Tensor(name, array) for name, array in arrays.items()])
