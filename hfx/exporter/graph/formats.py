"""Weight formats: which part of a generator is stored how, in one table.

Owns names and combinations; how a format is written is linear.py's and embedding.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WeightFormat = Literal["fp32", "int8", "int4", "fp16"]
KvType = Literal["float32", "float16"]
CrossType = Literal["float32", "float16", "int8"]
Precision = Literal["fp32", "int8", "int4", "fp16"]


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
