"""Writes weights in the layout of the native operators: panels of 64 outputs (hfx/native/linear.h)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray, Parameter
from hfx.exporter.quantize.generator import int4_blocks, int8_rows

# Columns of a panel; neighbouring weights of one column; the number of inputs is padded to a multiple of DEPTH.
COLUMNS, GROUP, DEPTH = 64, 4, 64
PANELS_A_PIECE = 64
LOW, FOUR = np.uint8(15), np.uint8(4)


def packed_shape(weight: Parameter, halves: int = 1) -> tuple[int, int, int, int]:
    """Return the shape [panels, depth / 4, 64, 4] of `weight` [outputs, inputs]; each half has panels of its own."""
    outputs, inputs = weight.shape
    return halves * -(-outputs // halves // COLUMNS), -(-inputs // DEPTH) * DEPTH // GROUP, COLUMNS, GROUP


def packed(weight: Parameter, levels: int, halves: int = 1) -> Iterator[tuple[NDArray[np.int8], FloatArray]]:
    """Yield `weight` in int8 as panels, some at a time, with the scale of each output."""
    for rows in _pieces(weight, halves):
        values, scale = int8_rows(rows, levels)
        yield panels_of(values), scale


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


def int4_shapes(weight: Parameter, block: int, halves: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of `weight` [outputs, inputs] in int4: [panels, depth / 8, 64, 4] and [panels, blocks, 64]."""
    outputs, inputs = weight.shape
    panels, step = halves * -(-outputs // halves // COLUMNS), max(block, DEPTH)
    depth = -(-inputs // step) * step
    return (panels, depth // (2 * GROUP), COLUMNS, GROUP), (panels, depth // block, COLUMNS)


def packed_int4(weight: Parameter, block: int, halves: int = 1) -> Iterator[tuple[NDArray[np.uint8], FloatArray]]:
    """Yield `weight` in int4 as panels, some at a time, with their scales; `int4_shapes` has both shapes."""
    for rows in _pieces(weight, halves):
        values, scale = int4_blocks(rows, block)
        panels = panels_of(values, max(block, DEPTH))
        pairs: NDArray[np.uint8] = panels.reshape(len(panels), -1, 2, COLUMNS, GROUP).view(np.uint8)
        padded = np.zeros((len(panels) * COLUMNS, panels.shape[1] * GROUP // block), np.float32)
        padded[: scale.shape[0], : scale.shape[1]] = scale
        by_block = padded.reshape(len(panels), COLUMNS, -1).transpose(0, 2, 1)
        yield (pairs[:, :, 0] & LOW) | (pairs[:, :, 1] << FOUR), np.ascontiguousarray(by_block)
