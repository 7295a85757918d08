"""Llama and Qwen2: a decoder with rotary positions, heads of K and V that queries share, and a gated feed forward.

Names and formulas are those of transformers' {Llama,Qwen2}ForCausalLM.
"""

from __future__ import annotations

import re

from hfx.exporter.families.family import Config, Family
from hfx.exporter.families.rotary import ROTARY_STEP, read_positions, read_rotary, stated_rotary
from hfx.exporter.graph.blocks import (
    Attention,
    Embedding,
    FeedForward,
    Head,
    Layer,
    Linear,
    Net,
    Norm,
    Stack,
    side_by_side,
)
from hfx.exporter.tensors import CheckpointTensors

IGNORED = re.compile(r"^lm_head\.weight$|\.rotary_emb\.inv_freq$")  # the tied head, and what is computed


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """A Llama or Qwen2 checkpoint as blocks."""
    _refuse_windows(config)
    root = tensors.prefix("model.")
    reader = _Reader(config, tensors, root)
    vocabulary = config.size("vocab_size")
    positions = read_positions(config)
    tied = config.tied_head(tensors, "lm_head.weight", root + "embed_tokens.weight")
    table = tensors.first(root + "embed_tokens.weight", *(["lm_head.weight"] if tied else []))
    embedding = Embedding(root + "embed_tokens", tensors.parameter(table, vocabulary, reader.hidden))
    stack = Stack(
        embedding=embedding,
        positions=None,
        bias=None,
        embedding_norm=None,
        layers=tuple(reader.layer(f"{root}layers.{index}.") for index in range(config.layers("num_hidden_layers"))),
        pre_norm=True,
        final_norm=reader.norm(root + "norm"),
        rotary=read_rotary(config, stated_rotary(config), reader.head_dim, positions),
    )
    weight = embedding.table if tied else tensors.parameter("lm_head.weight", vocabulary, reader.hidden)
    head = Head(Linear("lm_head", weight), embedding if tied else None)
    tensors.check(IGNORED)
    return Net("llama", "decoder", None, stack, head, vocabulary, positions, None, wide_residual=True)


def _refuse_windows(config: Config) -> None:
    """Each token must attend to all before it."""
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise config.unsupported("layer_types", "'full_attention' for every layer (use_sliding_window: false)")
    if config.get("model_type") == "llama":  # where a Qwen2 has a window that it uses, its layer_types say so
        config.refuse("sliding_window", None)


class _Reader:
    """Layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.linear = tensors.linear
        self.hidden, self.inner = config.size("hidden_size"), config.size("intermediate_size")
        self.heads = config.size("num_attention_heads")
        self.kv_heads = config.divisor("num_key_value_heads", "num_attention_heads")
        self.head_dim = self._head_dim()
        is_llama = config.get("model_type") == "llama"
        self.out_bias = is_llama and config.flag("attention_bias")
        self.qkv_bias = self.out_bias or not is_llama
        self.inner_bias = is_llama and config.flag("mlp_bias")

    def layer(self, name: str) -> Layer:
        attention = Attention(
            qkv=self.projections(name + "self_attn."),
            out=self.linear(name + "self_attn.o_proj", self.heads * self.head_dim, self.hidden, self.out_bias),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )
        parts = [
            self.linear(f"{name}mlp.{part}_proj", self.hidden, self.inner, self.inner_bias) for part in ("gate", "up")
        ]
        feed_forward = FeedForward(
            up=side_by_side(name + "mlp.gate_up", parts),
            down=self.linear(name + "mlp.down_proj", self.inner, self.hidden, self.inner_bias),
            activation=self.config.activation("hidden_act"),
            gated=True,
        )
        norms = self.norm(name + "input_layernorm"), self.norm(name + "post_attention_layernorm")
        return Layer(attention, None, feed_forward, norms)

    def projections(self, name: str) -> Linear:
        """Q, K and V as one matrix."""
        widths = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        parts = [
            self.linear(f"{name}{part}_proj", self.hidden, heads * self.head_dim, self.qkv_bias)
            for part, heads in widths.items()
        ]
        return side_by_side(name + "qkv", parts)

    def norm(self, name: str) -> Norm:
        weight = self.tensors.parameter(name + ".weight", self.hidden)
        return Norm(name, "rms", weight, None, self.config.positive("rms_norm_eps"))

    def _head_dim(self) -> int:
        stated = self.config.get("head_dim") is not None
        head_dim = (
            self.config.size("head_dim") if stated else self.config.head_dim("hidden_size", "num_attention_heads")
        )
        source = "head_dim" if stated else "hidden_size / num_attention_heads"
        return self.config.checked_head_dim(head_dim, source, ROTARY_STEP)


FAMILY = Family("llama", "decoder", ("llama", "qwen2"), ("LlamaForCausalLM", "Qwen2ForCausalLM"), read)
