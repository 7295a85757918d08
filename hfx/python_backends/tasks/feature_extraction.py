"""Shorter vectors of models whose first numbers are vectors themselves (Matryoshka): cut, then of length 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .inputs import Tensors, agreed

DIMENSIONS = "dimensions"
NORM_FLOOR = 1e-12  # of torch.nn.functional.normalize


class Postprocessor:
    """embedding [rows, width] -> embedding [rows, `dimensions`], which is INT32 [rows, 1]; all where it is left out."""

    required: tuple[str, ...] = ("embedding",)
    optional: tuple[str, ...] = (DIMENSIONS,)

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Without settings."""
        return cls()

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The vector of each row. Raises InvalidInput for more numbers than there are, and where rows differ."""
        vectors = tensors["embedding"]
        width = vectors.shape[1]
        count = agreed(DIMENSIONS, tensors, width)
        if count > width:
            raise InvalidInput(f"{DIMENSIONS} is {count}; the model's vectors have {width}")
        if count == width:
            return {"embedding": vectors}
        cut = vectors[:, :count]
        norms = np.sqrt(np.sum(cut * cut, axis=1, keepdims=True))
        return {"embedding": cut / np.maximum(norms, np.float32(NORM_FLOOR))}
