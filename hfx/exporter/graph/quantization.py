"""Numbers of the weight formats: int8 by row, 4 bits by block. Pure arithmetic on arrays; no graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray, Parameter

TINY = 1e-12  # an all-zero row has no scale
HALF = 8  # the zero point of 4 bits


def int8_rows(rows: FloatArray, levels: int) -> tuple[NDArray[np.int8], FloatArray]:
    """int8 of `rows` [n, k], symmetric around 0 up to `levels`, and the scale of each row [n]."""
    scale = np.maximum(np.abs(rows).max(axis=1), TINY).astype(np.float32) / np.float32(levels)
    values = rows / scale[:, None]
    np.rint(values, out=values)
    return np.clip(values, -levels, levels, out=values).astype(np.int8), scale


def int8_columns(weight: Parameter, levels: int) -> tuple[NDArray[np.int8], FloatArray]:
    """int8 of `weight` [outputs, inputs], transposed to [inputs, outputs], and the scale of each output."""
    outputs, inputs = weight.shape
    values, scales, start = np.empty((inputs, outputs), np.int8), [], 0
    for chunk in weight.chunks():
        quantized, scale = int8_rows(chunk, levels)
        values[:, start : start + len(chunk)] = quantized.T
        scales.append(scale)
        start += len(chunk)
    return values, np.concatenate(scales)


def int4_blocks(weight: Parameter, block: int) -> Iterator[tuple[NDArray[np.uint8], FloatArray]]:
    """Rows in MatMulNBits' layout: [n, blocks, block / 2], the even index in the low bits; and scales [n, blocks]."""
    inputs = weight.shape[1]
    blocks = -(-inputs // block)
    for chunk in weight.chunks():
        padded = np.zeros((len(chunk), blocks * block), np.float32)
        padded[:, :inputs] = chunk
        grouped = padded.reshape(len(chunk), blocks, block)
        # The value of the largest magnitude becomes -8, so that all of -8..7 is used.
        extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1)
        scale = extreme / np.float32(-HALF)
        values = np.rint(grouped / np.where(scale == 0, np.float32(1), scale)) + HALF
        nibbles = np.clip(values, 0, 2 * HALF - 1).astype(np.uint8)
        yield nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scale[..., 0]
