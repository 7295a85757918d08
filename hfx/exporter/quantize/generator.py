"""The weight formats of a generator (GPT-2, Llama, BART, T5): the format of each part, and quantization itself.

graph/linear.py writes the products of these weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray
from hfx.exporter.mixed_precision import Precision

WeightFormat = Literal["fp32", "int8", "int4", "fp16"]
KvType = Literal["float32", "float16"]
CrossType = Literal["float32", "float16", "int8"]
PARTS = ("linear", "head", "embedding", "encoder")  # of Formats that hold weights
ALL_LEVELS = 127  # the largest int8 weight
FOUR_LEVELS = 126  # the most that four weights add up to before they are rounded, which adds 2 at most
TINY = 1e-12  # the least peak of a row, as a row of zeros would have a scale of 0
HALF = 8  # 4 bits hold values from -8 to 7
# Scales of a block of int4 that are tried, as shares of the one that reaches its peak.
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
AT_ONCE = 1 << 16  # weights whose scales are found at once: they and the copies fit into a core's cache


@dataclass(frozen=True)
class Formats:
    """The formats of the decoder's linears, the head, the embeddings, the encoder's linears, and K and V.

    int8 has a scale for each output channel, and activations are quantized row by row. int4 has a scale for each
    `block` weights of a channel. `kv` is the type of the decoder's own K and V. `cross` is the type of a source's K and
    V; in int8 these have a scale for each channel of each request's own source. If head and embedding are one table,
    the head's format holds for both. The linears whose names are in `kept` have the format that FINER states.
    """

    precision: Precision
    linear: WeightFormat
    head: WeightFormat
    embedding: WeightFormat
    encoder: WeightFormat
    kv: KvType
    cross: CrossType
    block: int = 32
    kept: tuple[str, ...] = ()

    @property
    def int8(self) -> frozenset[str]:
        """The names of the parts in int8."""
        return frozenset(part for part in PARTS if getattr(self, part) == "int8")

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the manifest."""
        return {name: value for name, value in asdict(self).items() if name != "kept"}


FORMATS: dict[str, Formats] = {
    "fp32": Formats("fp32", "fp32", "fp32", "fp32", "fp32", "float32", "float32"),
    "int8": Formats("int8", "int8", "int8", "int8", "int8", "float32", "int8"),
    "int4": Formats("int4", "int4", "int8", "int8", "int8", "float32", "int8"),
    "fp16": Formats("fp16", "fp16", "fp16", "fp16", "fp16", "float16", "float16"),
}
# The formats to try, the fastest first; the next is tried if one is beyond the limits. Heads decide between close
# tokens, a source's K and V lose precision in int8 if few values are large, and finer int4 scales cost a little speed.
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
    """Return `rows` [n, k] in int8, symmetric around 0, and the scale of each row [n].

    The largest weight is `levels`. With FOUR_LEVELS, these are the most that equally signed weights of inputs
    8 i + (0, 1, 4, 5) or (2, 3, 6, 7) add up to: so many products are added in 16 bits where there is AVX2 alone
    (native/x86/linear_avx2.cpp).
    """
    if levels == FOUR_LEVELS:
        above = np.maximum(rows, 0)
        peak = np.maximum(_largest_four(above), _largest_four(np.subtract(above, rows, out=above)))
    else:
        peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    scale = np.maximum(peak, TINY).astype(np.float32) / np.float32(levels)
    values = rows / scale[:, None]  # at most `levels`, apart from rounding
    return np.rint(values, out=values).astype(np.int8), scale


def _largest_four(rows: FloatArray) -> FloatArray:
    if missing := -rows.shape[1] % 8:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    pairs = rows[:, ::2] + rows[:, 1::2]
    sums: FloatArray = np.maximum(pairs[:, ::4] + pairs[:, 2::4], pairs[:, 1::4] + pairs[:, 3::4]).max(axis=1)
    return sums


def int4_blocks(rows: FloatArray, block: int) -> tuple[NDArray[np.int8], FloatArray]:
    """Return `rows` as values from -8 to 7 [n, k], and a scale for each `block` of a row [n, blocks]."""
    (count, inputs), blocks = rows.shape, -(-rows.shape[1] // block)
    values, scales = np.empty((count, inputs), np.int8), np.empty((count, blocks), np.float32)
    step = max(1, AT_ONCE // (blocks * block))
    for start in range(0, count, step):
        part = rows[start : start + step]
        padded = np.zeros((len(part), blocks * block), np.float32)
        padded[:, :inputs] = part
        found, scale = _nearest_int4(np.ascontiguousarray(padded.reshape(-1, block).T))
        values[start : start + step] = found.T.reshape(len(part), -1)[:, :inputs]
        scales[start : start + step] = scale.reshape(len(part), -1)
    return values, scales


def _nearest_int4(weights: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return the values [block, n] and the scales [n] with the least weighted error for the columns of `weights`.

    The value of the largest magnitude becomes -8 or is beyond it. Each share of its scale gives rounded values q, and
    these the scale that fits them best, <w, q> / <q, q>, which leaves the squared error <w, w> - <w, q>^2 / <q, q>. The
    products have the weights |w|, as errors of large values cost most: without them the error of the values fell, and
    the divergence of a trained decoder's answers rose by up to 27 % (bench.quality). Sums add one row after the other,
    so that every processor finds the same bits.
    """
    high, low = weights.max(axis=0), weights.min(axis=0)
    peak = np.where(high > -low, high, low) / np.float32(-HALF)
    steps = weights / np.where(peak == 0, np.float32(1), peak)
    magnitude = np.abs(steps)
    weighted = steps * magnitude
    factor, scale, explained = np.ones_like(peak), np.zeros_like(peak), np.zeros_like(peak)
    rounded, product = np.empty_like(weights), np.empty_like(weights)
    for share in SHARES:
        _rounded(np.multiply(steps, np.float32(1 / share), out=rounded))
        along = np.multiply(weighted, rounded, out=product).sum(axis=0)
        np.multiply(np.multiply(rounded, rounded, out=product), magnitude, out=product)
        fitted = along / np.maximum(product.sum(axis=0), np.float32(1))
        better = fitted * along > explained
        for best, found in ((factor, np.float32(1 / share)), (scale, fitted), (explained, fitted * along)):
            np.copyto(best, found, where=better)
    return _rounded(steps * factor).astype(np.int8), scale * peak


def _rounded(steps: FloatArray) -> FloatArray:
    """Return `steps`, changed in place to the nearest values of 4 bits."""
    np.rint(steps, out=steps)
    return np.minimum(np.maximum(steps, -HALF, out=steps), HALF - 1, out=steps)
