"""Shortened vectors are cut, then normalized to length 1."""

from __future__ import annotations

import numpy as np
import pytest

from hfx.python_backends.errors import InvalidInput
from hfx.python_backends.tasks.feature_extraction import Postprocessor

VECTORS = np.float32([[3, 4, 12, 0], [0, 0, 5, 5]])


def cut(*dimensions: int) -> np.ndarray:
    return Postprocessor().answer({"embedding": VECTORS, "dimensions": np.int32(dimensions).reshape(-1, 1)})[
        "embedding"
    ]


def test_vectors_are_cut_and_then_normalized() -> None:
    np.testing.assert_allclose(cut(2, 2), [[0.6, 0.8], [0, 0]])
    np.testing.assert_allclose(cut(3, 3), [[3 / 13, 4 / 13, 12 / 13], [0, 0, 1]], rtol=1e-6)


def test_a_whole_vector_stays_as_it_is() -> None:
    assert np.array_equal(cut(4, 4), VECTORS)
    assert np.array_equal(Postprocessor().answer({"embedding": VECTORS})["embedding"], VECTORS)


@pytest.mark.parametrize(
    ("dimensions", "reason"),
    [
        ((5, 5), "dimensions is 5; the model's vectors have 4"),
        ((1, 2), "differs"),
        ((-1, -1), "at least 1"),
        ((), "empty"),
    ],
)
def test_invalid_dimensions_are_refused(dimensions: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        cut(*dimensions)
