"""The score of a query and a text, as sentence-transformers' CrossEncoder.predict (6.2) gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .inputs import Tensors
from .text_classification import ACTIVATIONS, softmax

RAW_SCORES, APPLY_SOFTMAX = "raw_scores", "apply_softmax"


class Postprocessor:
    """logits [rows, labels] -> score FP32 [rows, labels], in the labels' order.

    The scores of a row are the logits if `raw_scores` BOOL [rows, 1] is true, and otherwise their activation. If
    `apply_softmax` BOOL [rows, 1] is true, a softmax of the scores follows.
    """

    required: tuple[str, ...] = ("logits",)
    optional: tuple[str, ...] = (RAW_SCORES, APPLY_SOFTMAX)

    def __init__(self, activation: str) -> None:
        self._activation = ACTIVATIONS[activation]

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read activation (sigmoid, softmax, none) from settings.json."""
        return cls(settings["activation"])

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the scores of each row. Raises InvalidInput if an option does not have one value for each row."""
        logits = tensors["logits"]
        scores = self._activation(logits)
        if RAW_SCORES in tensors:
            scores = np.where(_flags(RAW_SCORES, tensors), logits, scores)
        if APPLY_SOFTMAX in tensors:
            scores = np.where(_flags(APPLY_SOFTMAX, tensors), softmax(scores), scores)
        return {"score": scores}


def _flags(name: str, tensors: Tensors) -> NDArray[np.bool_]:
    flags = tensors[name]
    if flags.size != len(tensors["logits"]):
        raise InvalidInput(f"{name} must hold one value a row, not the shape {list(flags.shape)}")
    return flags.reshape(-1, 1)
