"""Weights of a generator (GPT-2, Llama, BART, T5) in int8 and int4: which part is stored how, and the numbers.

The products of these weights are written by graph/linear.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray, Parameter
from hfx.exporter.options import Precision

WeightFormat = Literal["fp32", "int8", "int4", "fp16"]
KvType = Literal["float32", "float16"]
CrossType = Literal["float32", "float16", "int8"]
TINY = 1e-12  # an all-zero row has no scale
HALF = 8  # the zero point of 4 bits


@dataclass(frozen=True)
class Formats:
    """The format of the decoder's linears, of the head, the embeddings and the encoder's linears, and of K and V.

    int8: a scale an output channel, activations quantized row by row. int4: a scale for `block` weights of a channel.
    `cross` is how K and V of a source are kept; in int8 with a scale for each channel of each request's own source.
    Where head and embedding are one table, the head's format holds for both.
    """

    precision: Precision
    linear: WeightFormat
    head: WeightFormat
    embedding: WeightFormat
    encoder: WeightFormat
    kv: KvType
    cross: CrossType
    block: int = 32


FORMATS: dict[str, Formats] = {
    "fp32": Formats("fp32", "fp32", "fp32", "fp32", "fp32", "float32", "float32"),
    "int8": Formats("int8", "int8", "int8", "int8", "int8", "float32", "int8"),
    "int4": Formats("int4", "int4", "int8", "int8", "int8", "float32", "int8"),
    "fp16": Formats("fp16", "fp16", "fp16", "fp16", "fp16", "float16", "float16"),
}
# What is tried, the fastest first, where the one before is beyond the limits: heads decide between close tokens, a
# source's K and V in int8 lose where few values are large, and finer scales of int4 cost a little speed.
FORMATS_TRIED: Mapping[Precision, tuple[Formats, ...]] = {
    "fp32": (FORMATS["fp32"],),
    "fp16": (FORMATS["fp16"],),
    "int8": (FORMATS["int8"], replace(FORMATS["int8"], head="fp32", cross="float32")),
    "int4": (
        replace(FORMATS["int4"], head="int4", embedding="int4", block=128),
        FORMATS["int4"],
        replace(FORMATS["int4"], head="fp32", cross="float32", block=16),
    ),
}


def int8_rows(rows: FloatArray, levels: int) -> tuple[NDArray[np.int8], FloatArray]:
    """int8 of `rows` [n, k], symmetric around 0 up to `levels`, and the scale of each row [n]."""
    peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    scale = np.maximum(peak, TINY).astype(np.float32) / np.float32(levels)
    values = rows / scale[:, None]  # at most `levels` but for rounding
    return np.rint(values, out=values).astype(np.int8), scale


def fill_int8(values: NDArray[np.int8], weight: Parameter, levels: int) -> FloatArray:
    """Write int8 of `weight` into `values` of its shape, some rows at a time; the scale of each row."""
    scales, start = [], 0
    for chunk in weight.chunks():
        values[start : start + len(chunk)], scale = int8_rows(chunk, levels)
        scales.append(scale)
        start += len(chunk)
    return np.concatenate(scales)


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
