"""The score of a query and a text, as sentence-transformers' CrossEncoder.predict (6.2) gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .inputs import Tensors
from .text_classification import ACTIVATIONS

RAW_SCORES = "raw_scores"


class Postprocessor:
    """logits [rows, 1] -> score FP32 [rows, 1]: the logit itself where `raw_scores` BOOL [rows, 1] is true."""

    required: tuple[str, ...] = ("logits",)
    optional: tuple[str, ...] = (RAW_SCORES,)

    def __init__(self, activation: str) -> None:
        self._activation = ACTIVATIONS[activation]

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """From settings.json: activation (sigmoid, none)."""
        return cls(settings["activation"])

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The score of each row. Raises InvalidInput unless there is one value of raw_scores a row, or none."""
        logits = tensors["logits"]
        scores = self._activation(logits)
        if RAW_SCORES in tensors:
            raw = tensors[RAW_SCORES]
            if raw.size != len(logits):
                raise InvalidInput(f"{RAW_SCORES} must hold one value a row, not the shape {list(raw.shape)}")
            scores = np.where(raw.reshape(-1, 1), logits, scores)
        return {"score": scores}
