"""T5, T5 v1.1, Flan-T5 and mT5: root-mean-square norms before each part, biases by distance, unscaled scores.

Names and formulas follow transformers' T5ForConditionalGeneration.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.families.family import MOST_COMPUTED, Config, Family
from hfx.exporter.graph.blocks import (
    Attention,
    CrossAttention,
    DistanceBias,
    Embedding,
    FeedForward,
    Layer,
    Linear,
    Net,
    Norm,
    Parameter,
    Stack,
    side_by_side,
)
from hfx.exporter.tensors import CheckpointTensors

# A T5 has no built-in limit of length; this is its length in training if the config doesn't state it.
TRAINED_LENGTH = 512
FEWEST_BUCKETS = 4  # two directions, each with a near and a far bucket


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return a T5 checkpoint as blocks."""
    reader = _Reader(config, tensors)
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    embedding, head = config.ends(tensors, reader.hidden, *names)
    decoder = reader.stack("decoder", embedding, reader.decoder_layers, two_sided=False)
    if config.scaled:  # the last norm scales the hidden state
        decoder = replace(decoder, final_norm=reader.norm("decoder.final_layer_norm", reader.hidden**-0.5))
    encoder = reader.stack("encoder", embedding, reader.encoder_layers, two_sided=True)
    tensors.require()
    return Net("t5", decoder, head, reader.length, encoder, wide_residual=True)


class _Reader:
    """Reads the stacks of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors) -> None:
        self.config, self.tensors = config, tensors
        self.linear = partial(tensors.linear, bias=False)
        self.hidden, self.inner = config.size("d_model"), config.size("d_ff")
        self.heads, self.head_dim = config.size("num_heads"), config.checked_head_dim(config.size("d_kv"), "d_kv")
        self.width = self.heads * self.head_dim
        self.length = TRAINED_LENGTH if config.get("n_positions") is None else config.size("n_positions")
        self.encoder_layers, self.decoder_layers = config.layers("num_layers"), config.layers("num_decoder_layers")

    def stack(self, name: str, embedding: Embedding, layers: int, two_sided: bool) -> Stack:
        return Stack(
            embedding=embedding,
            bias=self.bias(name, two_sided),
            layers=tuple(self.layer(f"{name}.block.{index}.layer.", crossed=not two_sided) for index in range(layers)),
            final_norm=self.norm(f"{name}.final_layer_norm"),
        )

    def layer(self, name: str, crossed: bool) -> Layer:
        last = 2 if crossed else 1
        attention = Attention(
            qkv=self.projections(name + "0.SelfAttention.", "qkv"),
            out=self.linear(name + "0.SelfAttention.o", self.width, self.hidden),
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            scale=1.0,
        )
        norms = tuple(self.norm(f"{name}{part}.layer_norm") for part in range(last + 1))
        cross = self.cross(name + "1.EncDecAttention.") if crossed else None
        return Layer(attention, cross, self.feed_forward(f"{name}{last}.DenseReluDense."), norms)

    def cross(self, name: str) -> CrossAttention:
        return CrossAttention(
            query=self.linear(name + "q", self.hidden, self.width),
            memory=self.projections(name, "kv"),
            out=self.linear(name + "o", self.width, self.hidden),
            heads=self.heads,
            head_dim=self.head_dim,
            scale=1.0,
        )

    def feed_forward(self, name: str) -> FeedForward:
        down = self.linear(name + "wo", self.inner, self.hidden)
        kind = self.config.activation("dense_act_fn")
        if not self.config.flag("is_gated_act"):
            return FeedForward(self.linear(name + "wi", self.hidden, self.inner), down, kind)
        parts = [self.linear(name + part, self.hidden, self.inner) for part in ("wi_0", "wi_1")]
        return FeedForward(side_by_side(name + "wi", parts), down, kind, gated=True)

    def projections(self, name: str, parts: str) -> Linear:
        linears = [self.linear(name + part, self.hidden, self.width) for part in parts]
        return side_by_side(name + parts, linears)

    def norm(self, name: str, factor: float = 1.0) -> Norm:
        weight = self.tensors.parameter(name + ".weight", self.hidden)
        epsilon = self.config.positive("layer_norm_epsilon")
        return Norm(name, "rms", weight if factor == 1.0 else weight.scaled(factor), None, epsilon)

    def bias(self, stack: str, two_sided: bool) -> DistanceBias:
        buckets = self.config.size("relative_attention_num_buckets", least=FEWEST_BUCKETS)
        # Each bucket in the first half of a decoder's buckets is for one distance; the others share larger distances.
        reach = self.config.size("relative_attention_max_distance", MOST_COMPUTED, least=buckets // 2 + 1)
        weight = self.tensors.parameter(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", buckets, self.heads
        )
        distances = np.arange(-reach, reach + 1) if two_sided else -np.arange(reach + 1)
        rows = relative_buckets(distances, two_sided, buckets, reach)
        table = Parameter(
            stack + ".bias_by_distance", (len(rows), self.heads), lambda start, stop: weight.read()[rows[start:stop]]
        )
        return DistanceBias(table, reach)


def relative_buckets(
    distance: NDArray[np.int64], two_sided: bool, buckets: int, max_distance: int
) -> NDArray[np.int64]:
    """Return T5's bucket of each `distance` = key - query, in float32 like T5Attention._relative_position_bucket."""
    offset = np.zeros_like(distance)
    if two_sided:
        buckets //= 2
        offset = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = buckets // 2
    far = np.maximum(distance, max(exact, 1)).astype(np.float32)  # nearer distances don't use this value
    ratio = np.log(far / np.float32(exact)) / np.log(max_distance / exact) * (buckets - exact)
    bucket: NDArray[np.int64] = np.where(
        distance < exact, distance, np.minimum(exact + ratio.astype(np.int64), buckets - 1)
    )
    return bucket + offset


FAMILY = Family(
    "t5",
    "encoder-decoder",
    ("t5", "mt5"),
    ("T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration"),  # the second is an old name
    read,
    unbounded=True,
)
