"""The exponential function and the logarithm for all processors have the bits of numpy's for x86-64."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.python_backends import exponential
from hfx.python_backends.exponential import LARGEST, LEAST, ROOT_OF_HALF, Floats, portable_exp, portable_log

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numpy's functions for x86-64 are not here")
STEP = 4093  # a prime number, so that all bits of the patterns vary


def floats(first: int, last: int) -> Floats:
    """Return float32 numbers whose bits are `first` to `last` in steps."""
    return np.arange(first, last + 1, STEP, dtype=np.uint32).view(np.float32)


def around(*values: np.float32) -> Floats:
    """Return each of `values` and the hundred numbers on either side of it."""
    bits = np.array(values, np.float32).view(np.int32)
    return (bits[:, None] + np.arange(-100, 101, dtype=np.int32)).ravel().view(np.float32)


def bits(values: Floats) -> NDArray[np.uint32]:
    """Return the bits of numbers, with the same bits for every NaN."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
ENDS = around(
    LARGEST, LEAST, np.float32(1.0), np.float32(-1.0), np.float32(-87.33655)
)  # the last one's exp is the least normal number
POSITIVE = around(ROOT_OF_HALF, np.float32(1.0), np.float32(2.0), np.finfo(np.float32).tiny)


@ON_X86
@pytest.mark.parametrize(
    ("function", "oracle", "values"),
    [
        (portable_exp, np.exp, np.concatenate([floats(0, 2**32 - 1), ENDS, SPECIAL])),
        (portable_log, np.log, np.concatenate([floats(1, 0x7F7FFFFF), POSITIVE, SPECIAL[-1:]])),
    ],
    ids=["exp", "log"],
)
def test_each_bit_is_that_of_numpy_on_x86(
    function: Callable[[Floats], Floats], oracle: Callable[[Floats], Floats], values: Floats
) -> None:
    with np.errstate(all="ignore"):
        expected = oracle(values)
    differing = values[bits(function(values)) != bits(expected)]
    assert differing.size == 0, differing[:5].view(np.uint32)


def test_results_can_take_the_place_of_the_numbers() -> None:
    values = floats(0, 2**31)
    expected = portable_exp(values)
    assert portable_exp(values, out=values) is values
    assert np.array_equal(bits(values), bits(expected))


@ON_X86
def test_numpys_own_functions_run_on_x86() -> None:
    assert (exponential.exp, exponential.log) == (np.exp, np.log)


SQUARED = np.float32(1 + 2.0**-12)  # its square lies halfway between two float32 numbers


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("added", "expected"),
    [(0.0, 1 + 2.0**-11), (-(2.0**-60), 1 + 2.0**-11), (2.0**-60, 1 + 2.0**-11 + 2.0**-23)],
    ids=["a tie", "below a tie", "above a tie"],
)
def test_a_product_and_a_sum_are_rounded_once(sign: int, added: float, expected: float) -> None:
    total = exponential._fused(np.array([sign * SQUARED]), SQUARED, np.float32(sign * added))
    assert total.dtype == np.float32 and total.tolist() == [sign * expected]
