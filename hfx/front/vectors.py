"""Vectors in the forms that dialects have for them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from hfx.front.fields import shown
from hfx.front.refusals import Refusal

Vector = np.ndarray[Any, np.dtype[np.float32]]
UNIT_TOLERANCE = 1e-5  # of a length that float32 says is 1
TINY = 1e-12


def vector_json(vector: Vector, encoding: Any) -> Any:
    """A vector as `encoding` has it in JSON: float, or base64 of little-endian float32. Raises Refusal (400)."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if encoding != "float":
        raise Refusal(400, f"encoding_format is {shown(encoding)}. Send float or base64.", param="encoding_format")
    return vector.tolist()


def normalized(vectors: Vector) -> Vector:
    """The rows of `vectors` with length 1; a row that has it already is left as it is."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(np.abs(lengths - 1) < UNIT_TOLERANCE, vectors, vectors / np.maximum(lengths, TINY)).astype(
        "float32"
    )


def cosines(vectors: Vector) -> list[float]:
    """The cosines of the first row with each of the others."""
    rows = normalized(vectors)
    return [float(cosine) for cosine in rows[1:] @ rows[0]]
