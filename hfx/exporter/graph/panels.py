"""The integers that native operators multiply, and their layout: panels of 64 outputs (hfx/native/linear.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray, Parameter
from hfx.exporter.quantize.generator import WeightFormat, int4_blocks, int8_rows

# Columns of a panel; neighbouring weights of one column; the number of inputs is padded to a multiple of DEPTH.
COLUMNS, GROUP, DEPTH = 64, 4, 64
PANELS_A_PIECE = 64
LOW, FOUR = np.uint8(15), np.uint8(4)


@dataclass(frozen=True)
class Int8:
    """Weights up to `levels`, with a scale for each output.

    `operators` begins the names of their operators, which have `attributes`, and `suffix` ends those of the weights.
    Products with loud channels of their input are separate if it `splits_outliers`.
    """

    levels: int
    operators: ClassVar[str] = "Int8"
    suffix: ClassVar[str] = ".int8"
    dtype: ClassVar[type[np.generic]] = np.int8
    splits_outliers: ClassVar[bool] = True
    attributes: ClassVar[Mapping[str, int]] = {}

    def shapes(self, weight: Parameter, halves: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes [panels, depth / 4, 64, 4] of `weight` [outputs, inputs], and [outputs] of its scales.

        Each of the `halves` has panels of its own.
        """
        outputs, inputs = weight.shape
        panels = halves * -(-outputs // halves // COLUMNS)
        return (panels, -(-inputs // DEPTH) * DEPTH // GROUP, COLUMNS, GROUP), (outputs,)

    def packed(self, weight: Parameter, halves: int = 1) -> Iterator[tuple[NDArray[np.int8], FloatArray]]:
        """Yield some panels of `weight` at a time, with their scales."""
        for rows in _pieces(weight, halves):
            values, scale = int8_rows(rows, self.levels)
            yield panels_of(values), scale

    def rounded(self, rows: FloatArray) -> FloatArray:
        """Return `rows` of a weight with the values that they have in this format."""
        values, scale = int8_rows(rows, self.levels)
        return values * scale[:, None]


@dataclass(frozen=True)
class Int4:
    """Weights from -8 to 7, two in a byte, with a scale for each `block` of an output's weights; see Int8."""

    block: int
    operators: ClassVar[str] = "Int4"
    dtype: ClassVar[type[np.generic]] = np.uint8
    splits_outliers: ClassVar[bool] = False

    @property
    def suffix(self) -> str:
        """The end of the names of the weights."""
        return f".int4x{self.block}"

    @property
    def attributes(self) -> Mapping[str, int]:
        """The attributes of the operators."""
        return {"block": self.block}

    def shapes(self, weight: Parameter, halves: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes [panels, depth / 8, 64, 4] of `weight` and [panels, blocks, 64] of its scales."""
        outputs, inputs = weight.shape
        panels, step = halves * -(-outputs // halves // COLUMNS), max(self.block, DEPTH)
        depth = -(-inputs // step) * step
        return (panels, depth // (2 * GROUP), COLUMNS, GROUP), (panels, depth // self.block, COLUMNS)

    def packed(self, weight: Parameter, halves: int = 1) -> Iterator[tuple[NDArray[np.uint8], FloatArray]]:
        """Yield some panels of `weight` at a time, with their scales."""
        for rows in _pieces(weight, halves):
            values, scale = int4_blocks(rows, self.block)
            panels = panels_of(values, max(self.block, DEPTH))
            pairs: NDArray[np.uint8] = panels.reshape(len(panels), -1, 2, COLUMNS, GROUP).view(np.uint8)
            padded = np.zeros((len(panels) * COLUMNS, panels.shape[1] * GROUP // self.block), np.float32)
            padded[: scale.shape[0], : scale.shape[1]] = scale
            by_block = padded.reshape(len(panels), COLUMNS, -1).transpose(0, 2, 1)
            yield (pairs[:, :, 0] & LOW) | (pairs[:, :, 1] << FOUR), np.ascontiguousarray(by_block)

    def rounded(self, rows: FloatArray) -> FloatArray:
        """Return `rows` of a weight with the values that they have in this format."""
        values, scale = int4_blocks(rows, self.block)
        return values * np.repeat(scale, self.block, axis=1)[:, : rows.shape[1]]


def integers_of(name: WeightFormat, levels: int, block: int) -> Int8 | Int4 | None:
    """Return the integers of the format `name`; None if its weights are floats."""
    formats: Mapping[WeightFormat, Int8 | Int4] = {"int8": Int8(levels), "int4": Int4(block)}
    return formats.get(name)


def _pieces(weight: Parameter, halves: int) -> Iterator[FloatArray]:
    """Yield the rows of some whole panels at a time; the last panel of each half may have fewer rows."""
    outputs = weight.shape[0] // halves
    for half in range(halves):
        for start in range(0, outputs, PANELS_A_PIECE * COLUMNS):
            stop = min(start + PANELS_A_PIECE * COLUMNS, outputs)
            yield weight.take(half * outputs + start, half * outputs + stop)


def panels_of(values: NDArray[np.int8], step: int = DEPTH) -> NDArray[np.int8]:
    """Return `values` [outputs, inputs] as [panels, depth / 4, 64, 4], with zeros after the last output and input.

    The depth is a multiple of `step`.
    """
    (outputs, inputs), depth = values.shape, -(-values.shape[1] // step) * step
    padded = np.zeros((-(-outputs // COLUMNS) * COLUMNS, depth), np.int8)
    padded[:outputs, :inputs] = values
    return padded.reshape(-1, COLUMNS, depth // GROUP, GROUP).transpose(0, 2, 1, 3)
