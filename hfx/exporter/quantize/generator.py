"""The weight formats of a generator (GPT-2, Llama, BART, T5): the format of each part, and quantization itself.

graph/linear.py writes the products of these weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray
from hfx.exporter.options import Precision

WeightFormat = Literal["fp32", "int8", "int4", "fp16"]
KvType = Literal["float32", "float16"]
CrossType = Literal["float32", "float16", "int8"]
TINY = 1e-12  # the least peak of a row, as a row of zeros would have a scale of 0
HALF = 8  # 4 bits hold values from -8 to 7


@dataclass(frozen=True)
class Formats:
    """The formats of the decoder's linears, the head, the embeddings, the encoder's linears, and K and V.

    int8 has a scale for each output channel, and activations are quantized row by row. int4 has a scale for each
    `block` weights of a channel. `kv` is the type of the decoder's own K and V. `cross` is the type of a source's K and
    V; in int8 these have a scale for each channel of each request's own source. If head and embedding are one table,
    the head's format holds for both.
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
    """Return `rows` [n, k] in int8, symmetric around 0 up to `levels`, and the scale of each row [n]."""
    peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    scale = np.maximum(peak, TINY).astype(np.float32) / np.float32(levels)
    values = rows / scale[:, None]  # at most `levels`, apart from rounding
    return np.rint(values, out=values).astype(np.int8), scale


def int4_blocks(rows: FloatArray, block: int) -> tuple[NDArray[np.int8], FloatArray]:
    """Return `rows` as values from -8 to 7 [n, k], and a scale for each `block` of a row [n, blocks]."""
    count, inputs = rows.shape
    padded = np.zeros((count, -(-inputs // block) * block), np.float32)
    padded[:, :inputs] = rows
    grouped = padded.reshape(count, -1, block)
    # The value of the largest magnitude becomes -8, so that all of -8..7 is used.
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(-1)[..., None], -1)
    scale = extreme / np.float32(-HALF)
    values = np.rint(grouped / np.where(scale == 0, np.float32(1), scale)).clip(-HALF, HALF - 1)
    return values.astype(np.int8).reshape(count, -1)[:, :inputs], scale[..., 0]
