"""The exponential function and the logarithm of float32, with the same bits on every processor.

On x86-64, numpy computes both with AVX2 or AVX-512. On other processors it calls the C library, whose last bits differ.
There, the functions of this module repeat numpy's steps for x86-64 (loops_exponent_log.dispatch.c.src, numpy 1.26):
Cody and Waite's reduction, and rational minimax approximations. They take 40 to 50 ns for a number.
"""

from __future__ import annotations

import platform

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LOG2_E, LOG_2, ROOT_OF_HALF = np.float32(1.442695040), np.float32(0.693147180559945), np.float32(0.70710678118)
LOG_2_HIGH, LOG_2_LOW = np.float32(-6.93145752e-1), np.float32(-1.42860677e-6)
LARGEST, LEAST = np.float32(88.72283935546875), np.float32(-103.97208404541015625)  # beyond them: infinity, 0
# Coefficients of polynomials, from the highest power on, above and below the line.
EXP_ABOVE = (5.0827625e-04, 6.757896990527e-03, 5.114512081637e-02, 2.473615434896e-01, 7.257664613233e-01, 1.0)
EXP_BELOW = (2.159509375686e-02, -2.742335390412e-01, 1.0)
LOG_ABOVE = (2.589979117908e-02, 3.808837741388e-01, 1.480000633577, 2.112677543073, 1.0, 0.0)
LOG_BELOW = (5.875095403125e-03, 1.546476374984e-01, 9.864942958519e-01, 2.453006071785, 2.612677543073, 1.0)


def portable_exp(x: Floats, out: Floats | None = None) -> Floats:
    """Return the exponential function of each number, in `out` if it is given."""
    with np.errstate(all="ignore"):
        power = np.rint(np.clip(x * LOG2_E, -160, 130))
        rest = _fused(power, LOG_2_LOW, _fused(power, LOG_2_HIGH, x))
        values = np.ldexp(_polynomial(rest, EXP_ABOVE) / _polynomial(rest, EXP_BELOW), power.astype(np.int32))
    values = np.select([x >= LARGEST, x <= LEAST], [np.float32(np.inf), np.float32(0)], values)
    return values if out is None else np.positive(values, out=out)


def portable_log(x: Floats) -> Floats:
    """Return the logarithm of each number, which is positive or NaN."""
    part, power = np.frexp(x)
    low = part <= ROOT_OF_HALF
    rest = np.where(low, part + part, part) - np.float32(1)
    quotient = _polynomial(rest, LOG_ABOVE) / _polynomial(rest, LOG_BELOW)
    return _fused((power - low).astype(np.float32), LOG_2, quotient)


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    total = np.full_like(x, coefficients[0])
    for each in coefficients[1:]:
        total = _fused(total, x, np.float32(each))
    return total


def _fused(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    """Return a * b + c, rounded once, as `fused` in native/backend/scores.cpp does."""
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(product + c)
    bits = total.view(np.int64)
    halfway = (bits & 0x1FFFFFFF) == 0x10000000
    if halfway.any():
        other = total - product
        lost = (product - (total - other)) + (c - other)
        bits += np.where(halfway & (lost != 0), np.where((lost > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)


exp, log = (np.exp, np.log) if platform.machine() == "x86_64" else (portable_exp, portable_log)
