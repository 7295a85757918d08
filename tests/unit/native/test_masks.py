"""Masks of scores give the bits of numpy with each processor's kernels, on rows between inaccessible pages."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hfx.python_backends.engine.constraint import NUMPY, Masking, native_masking
from tests.unit.native.guarded import copy_of

SIZES, SHARES = (1, 15, 16, 17, 33, 60, 1000, 50257), (0.0, 0.001, 0.1, 0.5, 0.99, 1.0)


@pytest.fixture(scope="session")
def masking(float_library: Path) -> Masking:
    found = native_masking(float_library)
    assert found is not NUMPY
    return found


def packed(bits: np.ndarray, beyond: bytes) -> bytes:
    """Return a mask whose bits behind the last token are those of `beyond`."""
    mask = np.packbits(bits, bitorder="little").tobytes()
    whole = -(-len(bits) // 32) * 4
    last = mask[-1] | (beyond[0] << (len(bits) - 1) % 8 + 1 & 255)
    return mask[:-1] + bytes([last]) + beyond * (whole - len(mask))


@pytest.mark.parametrize("beyond", [b"\x00", b"\xff"])
@pytest.mark.parametrize("at_end", [False, True])
def test_the_best_allowed_score_and_what_is_forbidden_are_numpys(masking: Masking, at_end: bool, beyond: bytes) -> None:
    random = np.random.default_rng(1)
    for size, share in product(SIZES, SHARES):
        bits = random.random(size) < share
        mask = packed(bits, beyond)
        # Of some, many are equal; of others, many are minus infinity.
        for scores in (
            random.integers(-9, 9, size),
            random.standard_normal(size),
            np.where(random.random(size) < 0.5, 0, -np.inf),
        ):
            row = copy_of(scores.astype(np.float32), at_end)
            expected = np.where(bits, row, np.float32(-np.inf))
            best = int(expected.argmax()) if expected.max() > -np.inf else -1
            assert masking.best(row, mask) == NUMPY.best(row, mask) == best
            others = row.copy()
            masking.forbid(row, mask)
            NUMPY.forbid(others, mask)
            assert row.tobytes() == others.tobytes() == expected.tobytes()


def test_a_score_that_is_no_number_is_the_best_where_it_is_allowed(masking: Masking) -> None:
    row = np.array([1.0, np.nan, 3.0] + [0.0] * 40, np.float32)
    for way in (masking, NUMPY):
        assert (way.best(row, b"\xff" * 8), way.best(row, b"\xfd" + b"\xff" * 7)) == (1, 2)


def test_a_library_without_masks_leaves_them_to_numpy() -> None:
    assert native_masking(Path("libc.so.6")) is NUMPY
