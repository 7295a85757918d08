"""BART, mBART, M2M100 (NLLB too), Pegasus and Marian: one encoder-decoder, with switches set by the model type.

Names and formulas follow transformers' {Bart,MBart,M2M100,Pegasus}ForConditionalGeneration and MarianMTModel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hfx.exporter.families.family import MOST_COMPUTED, Config, Family
from hfx.exporter.graph.blocks import (
    Attention,
    CrossAttention,
    Embedding,
    FeedForward,
    FloatArray,
    Head,
    Layer,
    Linear,
    Net,
    Norm,
    Parameter,
    Stack,
    constant,
    joined,
    side_by_side,
)
from hfx.exporter.tensors import CheckpointTensors

EPSILON = 1e-5  # torch's default; the configs have no field for it


def sinusoids(start: int, stop: int, hidden: int) -> FloatArray:
    """Return [stop - start, hidden]: each position's sines, then its cosines (MarianSinusoidalPositionalEmbedding)."""
    columns = np.arange(hidden)
    angles = np.arange(start, stop)[:, None] / np.power(10000, 2 * (columns // 2) / hidden)
    table: FloatArray = np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1).astype(np.float32)
    return table


def wider_sinusoids(start: int, stop: int, hidden: int) -> FloatArray:
    """Return `sinusoids` with tensor2tensor's frequencies, in float32 (M2M100SinusoidalPositionalEmbedding)."""
    half = hidden // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1)))
    angles = np.arange(start, stop, dtype=np.float32)[:, None] * frequencies
    table: FloatArray = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return table


@dataclass(frozen=True)
class Variant:
    """The differences of a model type. `sinusoids` computes the positions; if it is None, they are learned.

    The first position is row 2 of a learned table and row 0 of sinusoids. With `after_padding` it is the row after the
    id of the padding token; that token has no position, and nothing is added to it.
    """

    pre_norm: bool
    embedding_norm: bool
    sinusoids: Callable[[int, int, int], FloatArray] | None = None
    after_padding: bool = False


VARIANTS = {
    "bart": Variant(pre_norm=False, embedding_norm=True),
    "mbart": Variant(pre_norm=True, embedding_norm=True),
    "m2m_100": Variant(pre_norm=True, embedding_norm=False, sinusoids=wider_sinusoids, after_padding=True),
    "pegasus": Variant(pre_norm=True, embedding_norm=False, sinusoids=sinusoids),
    "marian": Variant(pre_norm=False, embedding_norm=False, sinusoids=sinusoids),
}
LEARNED_OFFSET = 2


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return a checkpoint of one of VARIANTS as blocks."""
    root = tensors.prefix("model.")
    reader = _Reader(config, tensors, root)
    vocabulary = config.size("vocab_size")
    source, target = reader.embeddings(vocabulary)
    encoder, decoder = reader.stack("encoder", source), reader.stack("decoder", target)
    bias = reader.final_bias(vocabulary)
    tied = reader.tied
    weight = target.table if tied else tensors.parameter("lm_head.weight", vocabulary, reader.hidden)
    head = Head(Linear("lm_head", weight, bias), target if tied else None)
    wide = reader.variant.pre_norm  # no norm bounds its residual stream
    tensors.require()
    return Net("bart", decoder, head, config.size("max_position_embeddings"), encoder, wide)


class _Reader:
    """Reads the stacks of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.linear = tensors.linear
        self.variant = VARIANTS[config.values["model_type"]]
        self.hidden = config.size("d_model")
        self.activation = config.activation("activation_function")
        tables = (
            root + name for name in ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
        )
        self.tied = config.tied_head(tensors, "lm_head.weight", *tables)
        self.scale = math.sqrt(self.hidden) if config.flag("scale_embedding") else 1.0

    def embeddings(self, vocabulary: int) -> tuple[Embedding, Embedding]:
        """Return the embeddings of the encoder and of the decoder.

        Both are the same, except in some Marian checkpoints and in untied models that transformers 5 has saved. The
        latter have three tables, and the shared one is not used.
        """
        source, target = (f"{self.root}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
        copies = [target, "lm_head.weight"] if self.tied else [target]
        if self.config.get("share_encoder_decoder_embeddings") in (True, None):
            if not self.config.tied and not self.config.written_by_4:
                return self.embedding(source, vocabulary), self.embedding(target, vocabulary)
            name = self.config.one_table(self.tensors, self.root + "shared.weight", source, *copies)
            shared = self.embedding(name, vocabulary)
            return shared, shared
        if self.config.size("decoder_vocab_size") != vocabulary:  # sources and answers share one tokenizer
            raise self.config.unsupported("decoder_vocab_size", f"their vocab_size ({vocabulary})")
        return self.embedding(source, vocabulary), self.embedding(self.tensors.first(*copies), vocabulary)

    def embedding(self, name: str, vocabulary: int) -> Embedding:
        return Embedding(name, self.tensors.parameter(name, vocabulary, self.hidden), self.scale)

    def final_bias(self, vocabulary: int) -> Parameter | None:
        """Return the bias of the logits; None if it is missing or all zeros, as in most checkpoints."""
        if "final_logits_bias" not in self.tensors:
            return None
        bias = self.tensors.parameter("final_logits_bias", 1, vocabulary)
        self.tensors.require()
        values = bias.read().reshape(-1)
        return constant("final_logits_bias", values) if values.any() else None

    def stack(self, side: str, embedding: Embedding) -> Stack:
        name = f"{self.root}{side}."
        layers = range(self.config.layers(f"{side}_layers"))
        return Stack(
            embedding=embedding,
            positions=self.positions(name + "embed_positions.weight"),
            pad_id=self.config.size("pad_token_id", least=0) if self.variant.after_padding else None,
            embedding_norm=self.norm(name + "layernorm_embedding") if self.variant.embedding_norm else None,
            layers=tuple(self.layer(side, f"{name}layers.{index}.") for index in layers),
            pre_norm=self.variant.pre_norm,
            final_norm=self.norm(name + "layer_norm") if self.variant.pre_norm else None,
        )

    def positions(self, name: str) -> Parameter:
        count, compute = self.config.size("max_position_embeddings"), self.variant.sinusoids
        if compute is None:
            table = self.tensors.parameter(name, count + LEARNED_OFFSET, self.hidden)
            return table.rows(LEARNED_OFFSET, count + LEARNED_OFFSET)
        if name in self.tensors:
            return self.tensors.parameter(name, count, self.hidden)
        count = self.config.size("max_position_embeddings", MOST_COMPUTED)
        first = self.config.size("pad_token_id", least=0) + 1 if self.variant.after_padding else 0
        computed = Parameter(
            "sinusoids", (count, self.hidden), lambda start, stop: compute(first + start, first + stop, self.hidden)
        )
        if not self.variant.after_padding:
            return computed
        return joined("sinusoids", [computed, constant("pad", np.zeros((1, self.hidden), np.float32))])

    def layer(self, side: str, name: str) -> Layer:
        heads_field, inner = f"{side}_attention_heads", self.config.size(f"{side}_ffn_dim")
        heads, head_dim = self.config.size(heads_field), self.config.head_dim("d_model", heads_field)
        scale = 1 / math.sqrt(head_dim)
        attention = Attention(
            self.projections(name + "self_attn.", "qkv"),
            self.linear(name + "self_attn.out_proj", self.hidden, self.hidden),
            heads,
            heads,
            head_dim,
            scale,
        )
        norms, cross = [self.norm(name + "self_attn_layer_norm")], None
        if side == "decoder":
            norms.append(self.norm(name + "encoder_attn_layer_norm"))
            cross = CrossAttention(
                self.linear(name + "encoder_attn.q_proj", self.hidden, self.hidden),
                self.projections(name + "encoder_attn.", "kv"),
                self.linear(name + "encoder_attn.out_proj", self.hidden, self.hidden),
                heads,
                head_dim,
                scale,
            )
        up, down = self.linear(name + "fc1", self.hidden, inner), self.linear(name + "fc2", inner, self.hidden)
        norms.append(self.norm(name + "final_layer_norm"))
        return Layer(attention, cross, FeedForward(up, down, self.activation), tuple(norms))

    def projections(self, name: str, parts: str) -> Linear:
        """Return several projections of one input as one matrix."""
        linears = [self.linear(f"{name}{part}_proj", self.hidden, self.hidden) for part in parts]
        return side_by_side(name + parts, linears)

    def norm(self, name: str) -> Norm:
        weight, bias = (self.tensors.parameter(f"{name}.{part}", self.hidden) for part in ("weight", "bias"))
        return Norm(name, "layer", weight, bias, EPSILON)


FAMILY = Family(
    name="bart",
    kind="encoder-decoder",
    model_types=tuple(VARIANTS),
    architectures=(
        "BartForConditionalGeneration",
        "BartModel",
        "MBartForConditionalGeneration",
        "MBartModel",
        "M2M100ForConditionalGeneration",
        "M2M100Model",
        "PegasusForConditionalGeneration",
        "PegasusModel",
        "MarianMTModel",
        "MarianModel",
    ),
    read=read,
)
