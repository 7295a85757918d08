"""What the native operators compute, in numpy: exact integers, then float32 in the same order of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf

PANEL, GROUP, DEPTH_STEP = 64, 4, 64
LEVELS, LEAST_PEAK = np.float32(127), np.float32(1e-35)


@dataclass(frozen=True)
class Linear:
    """`values` [outputs, inputs] int8, `scale` and `bias` [outputs] float32."""

    values: np.ndarray
    scale: np.ndarray
    bias: np.ndarray

    @property
    def inputs(self) -> int:
        return int(self.values.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.values.shape[0])

    def packed(self, halves: int = 1) -> np.ndarray:
        """The layout of hfx/native/linear.h: [panels, depth / 4, 64, 4], each of the `halves` in panels of its own."""
        columns = self.outputs // halves
        panels, depth = -(-columns // PANEL), -(-self.inputs // DEPTH_STEP) * DEPTH_STEP
        padded = np.zeros((halves, panels * PANEL, depth), np.int8)
        padded[:, :columns, : self.inputs] = self.values.reshape(halves, columns, self.inputs)
        groups = padded.reshape(halves * panels, PANEL, depth // GROUP, GROUP)
        return np.ascontiguousarray(groups.transpose(0, 2, 1, 3))

    def half(self, index: int) -> Linear:
        """The first or the second half of the columns."""
        part = slice(index * self.outputs // 2, (index + 1) * self.outputs // 2)
        return Linear(self.values[part], self.scale[part], self.bias[part])

    def __call__(self, x: np.ndarray, outliers: np.ndarray | None = None, columns: np.ndarray | None = None) -> Any:
        """The product [rows, outputs] of `x` [rows, inputs], to the bit; NaN for rows that are not finite.

        `outliers` [rows, n] times `columns` [outputs, n] is added as floats, one input after the other.
        """
        finite = np.isfinite(x).all(1)
        peak = np.abs(x[finite]).max(1)
        gain = LEVELS / np.maximum(peak, LEAST_PEAK)
        quantized = np.rint(x[finite] * gain[:, None]).astype(np.float64)
        sums = (quantized @ self.values.T.astype(np.float64)).astype(np.int64)  # exact: below 2^53
        y = np.full((len(x), self.outputs), np.nan, np.float32)
        with np.errstate(over="ignore"):
            y[finite] = sums.astype(np.float32) * self.scale * (peak / LEVELS)[:, None] + self.bias
        for i in range(0 if outliers is None else outliers.shape[1]):
            y += columns[:, i] * outliers[:, i, None]
        return y


def random_linear(inputs: int, outputs: int, seed: int = 0) -> Linear:
    """A linear of all levels from -127 to 127."""
    rng = np.random.default_rng((seed, inputs, outputs))
    values = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = (rng.random(outputs) * 0.01 + 0.001).astype(np.float32)
    return Linear(values, scale, rng.standard_normal(outputs).astype(np.float32))


def random_rows(*shape: int, seed: int = 1) -> np.ndarray:
    """Normal values, each row of a size of its own."""
    rng = np.random.default_rng((seed, *shape))
    sizes = np.exp(2 * rng.standard_normal((*shape[:-1], 1)))
    return (rng.standard_normal(shape) * sizes).astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


# In float64, by the ending of the operator's name.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "GeluTanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "QuickGelu": lambda x: x * _sigmoid(1.702 * x),
    "Silu": lambda x: x * _sigmoid(x),
}


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal in shape and in every bit; a NaN equals any NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.int32)[~nan], expected.view(np.int32)[~nan])
