"""Reference results of the native operators in numpy: exact integers, then float32 in the same order of operations."""

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
        """Return the layout of hfx/native/linear.h: [panels, depth / 4, 64, 4], each of the `halves` in own panels."""
        columns = self.outputs // halves
        panels, depth = -(-columns // PANEL), -(-self.inputs // DEPTH_STEP) * DEPTH_STEP
        padded = np.zeros((halves, panels * PANEL, depth), np.int8)
        padded[:, :columns, : self.inputs] = self.values.reshape(halves, columns, self.inputs)
        groups = padded.reshape(halves * panels, PANEL, depth // GROUP, GROUP)
        return np.ascontiguousarray(groups.transpose(0, 2, 1, 3))

    def constants(self, halves: int = 1) -> dict[str, np.ndarray]:
        """Return the constant inputs of an operator."""
        return {"weights": self.packed(halves), "scale": self.scale, "bias": self.bias}

    def sizes(self, halves: int = 1) -> dict[str, int]:
        """Return the attributes of an operator."""
        return {"in_features": self.inputs, "out_features": self.outputs // halves}

    def half(self, index: int) -> Linear:
        """Return the first or the second half of the columns."""
        part = slice(index * self.outputs // 2, (index + 1) * self.outputs // 2)
        return Linear(self.values[part], self.scale[part], self.bias[part])

    def __call__(self, x: np.ndarray, outliers: np.ndarray | None = None, columns: np.ndarray | None = None) -> Any:
        """Return the product [rows, outputs] of `x` [rows, inputs] in every bit; NaN for rows that are not finite.

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


@dataclass(frozen=True)
class Int4Linear:
    """`values` [outputs, inputs] from -8 to 7, `scale` [outputs, blocks] of `block` inputs each, `bias` [outputs]."""

    values: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    block: int

    @property
    def inputs(self) -> int:
        return int(self.values.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.values.shape[0])

    def constants(self, halves: int = 1) -> dict[str, np.ndarray]:
        """The layout of hfx/native/linear.h: [panels, depth / 8, 64, 4] of two weights each, [panels, blocks, 64]."""
        columns, step = self.outputs // halves, max(self.block, DEPTH_STEP)
        panels, depth = -(-columns // PANEL), -(-self.inputs // step) * step
        padded = np.zeros((halves, panels * PANEL, depth), np.int8)
        padded[:, :columns, : self.inputs] = self.values.reshape(halves, columns, self.inputs)
        groups = padded.reshape(halves * panels, PANEL, depth // (2 * GROUP), 2, GROUP).transpose(0, 2, 1, 3, 4)
        pairs = (groups[..., 0, :] & 15) | (groups[..., 1, :] << 4)
        scale = np.zeros((halves, panels * PANEL, depth // self.block), np.float32)
        scale[:, :columns, : self.scale.shape[1]] = self.scale.reshape(halves, columns, -1)
        by_panel = scale.reshape(halves * panels, PANEL, -1).transpose(0, 2, 1)
        bytes_ = np.ascontiguousarray(pairs).view(np.uint8)
        return {"weights": bytes_, "scale": np.ascontiguousarray(by_panel), "bias": self.bias}

    def sizes(self, halves: int = 1) -> dict[str, int]:
        """Return the attributes of an operator."""
        return {"in_features": self.inputs, "out_features": self.outputs // halves, "block": self.block}

    def half(self, index: int) -> Int4Linear:
        """Return the first or the second half of the columns."""
        part = slice(index * self.outputs // 2, (index + 1) * self.outputs // 2)
        return Int4Linear(self.values[part], self.scale[part], self.bias[part], self.block)

    def __call__(self, x: np.ndarray) -> Any:
        """Return the product [rows, outputs] of `x` [rows, inputs] in every bit; NaN for rows that are not finite."""
        finite, total = np.isfinite(x).all(1), np.zeros((len(x), self.outputs), np.float32)
        total[~finite] = np.nan
        for index, start in enumerate(range(0, self.inputs, self.block)):
            part = x[finite, start : start + self.block]
            peak = np.abs(part).max(1)
            quantized = np.rint(part * (LEVELS / np.maximum(peak, LEAST_PEAK))[:, None]).astype(np.float64)
            sums = 16 * quantized @ self.values[:, start : start + self.block].T.astype(np.float64)  # exact
            scaled = (sums.astype(np.float32) * self.scale[:, index]).astype(np.longdouble)
            factor = (peak / LEVELS / np.float32(16)).astype(np.longdouble)
            with np.errstate(over="ignore"):
                total[finite] = (scaled * factor[:, None] + total[finite]).astype(np.float32)
        return total + self.bias


def random_int4(inputs: int, outputs: int, block: int) -> Int4Linear:
    """Return a linear of all values from -8 to 7, with scales of both signs."""
    rng = np.random.default_rng((inputs, outputs, block))
    values = rng.integers(-8, 8, (outputs, inputs)).astype(np.int8)
    scale = rng.uniform(-0.1, 0.1, (outputs, -(-inputs // block))).astype(np.float32)
    return Int4Linear(values, scale, rng.standard_normal(outputs).astype(np.float32), block)


def random_linear(inputs: int, outputs: int, seed: int = 0) -> Linear:
    """Return a linear of all levels from -127 to 127."""
    rng = np.random.default_rng((seed, inputs, outputs))
    values = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = (rng.random(outputs) * 0.01 + 0.001).astype(np.float32)
    return Linear(values, scale, rng.standard_normal(outputs).astype(np.float32))


def random_rows(*shape: int, seed: int = 1) -> np.ndarray:
    """Return normal values, each row of a different magnitude."""
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
    "Tanh": np.tanh,
}


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Check that arrays are equal in shape and in every bit; a NaN equals any NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.int32)[~nan], expected.view(np.int32)[~nan])
