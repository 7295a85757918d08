"""Llama and its kin: decoders with rotary positions, heads of K and V that queries share, and a gated feed forward.

Names and formulas are those of transformers' {Llama,Ministral,Mistral,Qwen2,Qwen3}ForCausalLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Variant:
    """How a model type differs. `bias_fields` are those that its class reads; `qkv_bias`: there is one in any case."""

    bias_fields: tuple[str, ...] = ()
    qkv_bias: bool = False
    head_norms: bool = False
    windows: bool = True


VARIANTS = {
    "llama": Variant(bias_fields=("attention_bias", "mlp_bias"), windows=False),
    "ministral": Variant(),  # also a Mistral with layer_types
    "mistral": Variant(),
    "qwen2": Variant(qkv_bias=True),
    "qwen3": Variant(bias_fields=("attention_bias",), head_norms=True),
}
FULL, SLIDING = "full_attention", "sliding_attention"


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """A checkpoint of one of VARIANTS as blocks."""
    root = tensors.prefix("model.")
    reader = _Reader(config, tensors, root)
    vocabulary = config.size("vocab_size")
    tied = config.tied_head(tensors, "lm_head.weight", root + "embed_tokens.weight")
    table = tensors.first(root + "embed_tokens.weight", *(["lm_head.weight"] if tied else []))
    embedding = Embedding(root + "embed_tokens", tensors.parameter(table, vocabulary, reader.hidden))
    stack = Stack(
        embedding=embedding,
        positions=None,
        bias=None,
        embedding_norm=None,
        layers=tuple(reader.layer(f"{root}layers.{index}.", window) for index, window in enumerate(reader.windows())),
        pre_norm=True,
        final_norm=reader.norm(root + "norm"),
    )
    weight = embedding.table if tied else tensors.parameter("lm_head.weight", vocabulary, reader.hidden)
    head = Head(Linear("lm_head", weight), embedding if tied else None)
    tensors.check(IGNORED)
    return Net("llama", "decoder", None, stack, head, vocabulary, reader.positions, None, wide_residual=True)


class _Reader:
    """Layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.linear = tensors.linear
        self.hidden, self.inner = config.size("hidden_size"), config.size("intermediate_size")
        self.heads = config.size("num_attention_heads")
        self.kv_heads = config.divisor("num_key_value_heads", "num_attention_heads")
        self.head_dim = self._head_dim()
        self.positions = read_positions(config)
        self.rotary = read_rotary(config, stated_rotary(config), self.head_dim, self.positions)
        self.variant = VARIANTS[config.values["model_type"]]
        self.out_bias, self.inner_bias = (
            field in self.variant.bias_fields and config.flag(field) for field in ("attention_bias", "mlp_bias")
        )
        self.qkv_bias = self.out_bias or self.variant.qkv_bias

    def windows(self) -> list[int | None]:
        """The window of each layer; None where it attends to all tokens before."""
        config, layers, stated = self.config, self.config.layers("num_hidden_layers"), self.config.get("layer_types")
        if not self.variant.windows:
            config.refuse("sliding_window", None)
        alike = FULL if config.get("sliding_window") is None else SLIDING
        kinds = [alike] * layers if stated is None else stated
        known = (FULL, SLIDING) if self.variant.windows else (FULL,)
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            raise config.unsupported("layer_types", f"{' or '.join(map(repr, known))} for each of {layers} layers")
        size = config.size("sliding_window") if SLIDING in kinds else self.positions
        return [size if kind == SLIDING and size < self.positions else None for kind in kinds]

    def layer(self, name: str, window: int | None) -> Layer:
        attention = Attention(
            qkv=self.projections(name + "self_attn."),
            out=self.linear(name + "self_attn.o_proj", self.heads * self.head_dim, self.hidden, self.out_bias),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            rotary=self.rotary,
            head_norms=self.head_norms(name + "self_attn.") if self.variant.head_norms else None,
            window=window,
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

    def head_norms(self, name: str) -> tuple[Norm, Norm]:
        """Of each head of Q, and of K."""
        return self.norm(name + "q_norm", self.head_dim), self.norm(name + "k_norm", self.head_dim)

    def norm(self, name: str, width: int | None = None) -> Norm:
        weight = self.tensors.parameter(name + ".weight", width or self.hidden)
        return Norm(name, "rms", weight, None, self.config.positive("rms_norm_eps"))

    def _head_dim(self) -> int:
        stated = self.config.get("head_dim") is not None
        head_dim = (
            self.config.size("head_dim") if stated else self.config.head_dim("hidden_size", "num_attention_heads")
        )
        source = "head_dim" if stated else "hidden_size / num_attention_heads"
        return self.config.checked_head_dim(head_dim, source, ROTARY_STEP)


FAMILY = Family(
    name="llama",
    kind="decoder",
    model_types=tuple(VARIANTS),
    architectures=(
        "LlamaForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    ),
    read=read,
)
