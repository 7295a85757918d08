"""Shortens vectors whose first numbers are vectors themselves (Matryoshka), and selects the vectors of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HAS_OTHER_DIMENSIONS, InvalidInput
from .inputs import Tensors, agreed

DIMENSIONS, MASK = "dimensions", "attention_mask"
NORM_FLOOR = 1e-12  # of torch.nn.functional.normalize


class Postprocessor:
    """embedding [rows, width] -> embedding [rows, `dimensions`].

    The setting `dimensions` is INT32 [rows, 1]; without it, vectors keep their width. A shortened vector is scaled to
    length 1.
    """

    required: tuple[str, ...] = ("embedding",)
    optional: tuple[str, ...] = (DIMENSIONS,)

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor | TokenVectors:
        """Return the postprocessor for settings.json: `tokens` says whether each token has a vector."""
        return TokenVectors() if settings.get("tokens") else cls()

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the vector of each row.

        Raises InvalidInput if `dimensions` is larger than the vectors, or differs between rows.
        """
        vectors = tensors["embedding"]
        width = vectors.shape[1]
        count = agreed(DIMENSIONS, tensors, width)
        if count > width:
            raise InvalidInput(HAS_OTHER_DIMENSIONS % (count, width))
        if count == width:
            return {"embedding": vectors}
        cut = vectors[:, :count]
        norms = np.sqrt(np.sum(cut * cut, axis=1, keepdims=True))
        return {"embedding": cut / np.maximum(norms, np.float32(NORM_FLOOR))}


class TokenVectors:
    """embedding [rows, width, numbers] -> embedding [rows, tokens, numbers] and input_tokens INT32 [rows, 1].

    A row with fewer tokens than another row of its request ends with zeros.
    """

    required: tuple[str, ...] = ("embedding",)
    # It is always there. As it is optional, each request is answered alone, and no other request decides its shape.
    optional: tuple[str, ...] = (MASK,)

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the vectors of each row's tokens, special tokens included, except those whose mask is 2."""
        kept = np.abs(tensors[MASK]) == 1
        counts = np.count_nonzero(kept, axis=1)
        first = np.argsort(~kept, axis=1, kind="stable")[:, : counts.max(initial=0)]
        vectors = np.take_along_axis(tensors["embedding"], first[:, :, None], axis=1)  # 0 for tokens that aren't kept
        return {"embedding": vectors, "input_tokens": counts.astype(np.int32)[:, None]}
