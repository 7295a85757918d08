"""Llama and its kin: decoders with rotary positions, heads of K and V that queries share, and a gated feed forward.

Names and formulas follow transformers' {Gemma3,Llama,Ministral,Mistral,Qwen2,Qwen3,SmolLM3}ForCausalLM.
"""

from __future__ import annotations

from dataclasses import dataclass

from hfx.exporter.families.family import Config, Family
from hfx.exporter.families.rotary import ROTARY_STEP, read_positions, read_rotary, stated_rotary
from hfx.exporter.graph.blocks import Attention, FeedForward, Layer, Linear, Net, Norm, Rotary, Stack, side_by_side
from hfx.exporter.tensors import CheckpointTensors

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Variant:
    """The differences of a model type.

    `bias_fields` are the fields about biases that its class reads; with `qkv_bias`, Q, K and V always have a bias.
    `norms` come before attention and feed forward, `post_norms` after them. Gemma's norms multiply by 1 + weight
    (`norm_offset`), its embeddings are multiplied by the root of their width, and each type of layer has rotary
    positions of its own.
    """

    bias_fields: tuple[str, ...] = ()
    qkv_bias: bool = False
    head_norms: bool = False
    windows: bool = True
    activation_field: str = "hidden_act"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    post_norms: tuple[str, ...] = ()
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    scale_field: str | None = None  # scores are divided by its root; if None, by the root of head_dim
    rotary_by_type: bool = False
    unturned_layers: bool = False  # no_rope_layers is 0 for each layer without rotary positions
    wanted: tuple[tuple[str, object], ...] = ()  # fields, each with its only supported value


VARIANTS = {
    "gemma3_text": Variant(
        bias_fields=("attention_bias",),
        head_norms=True,
        activation_field="hidden_activation",
        norms=("input_layernorm", "pre_feedforward_layernorm"),
        post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        norm_offset=1.0,
        scaled_embedding=True,
        scale_field="query_pre_attn_scalar",
        rotary_by_type=True,
        wanted=(
            ("use_bidirectional_attention", False),
            ("attn_logit_softcapping", None),
            ("final_logit_softcapping", None),
        ),
    ),
    "llama": Variant(bias_fields=("attention_bias", "mlp_bias"), windows=False, wanted=(("sliding_window", None),)),
    "ministral": Variant(),  # also a Mistral with layer_types
    "mistral": Variant(),
    "qwen2": Variant(qkv_bias=True),
    "qwen3": Variant(bias_fields=("attention_bias",), head_norms=True),
    "smollm3": Variant(bias_fields=("attention_bias", "mlp_bias"), unturned_layers=True),
}


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return a checkpoint of one of VARIANTS as blocks."""
    root = tensors.prefix("model.")
    reader = _Reader(config, tensors, root)
    scale = reader.hidden**0.5 if reader.variant.scaled_embedding else 1.0
    embedding, head = config.ends(tensors, reader.hidden, root + "embed_tokens.weight", scale=scale)
    stack = Stack(
        embedding=embedding,
        layers=tuple(reader.layer(f"{root}layers.{index}.", index) for index in range(len(reader.kinds))),
        final_norm=reader.norm(root + "norm"),
    )
    tensors.require()
    return Net("llama", stack, head, reader.positions, wide_residual=True)


class _Reader:
    """Reads the layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.linear = tensors.linear
        self.hidden, self.inner = config.size("hidden_size"), config.size("intermediate_size")
        self.heads = config.size("num_attention_heads")
        self.kv_heads = config.divisor("num_key_value_heads", "num_attention_heads")
        self.head_dim = self._head_dim()
        self.variant = VARIANTS[config.values["model_type"]]
        for field, value in self.variant.wanted:
            config.refuse(field, value)
        self.positions, self.kinds = read_positions(config), self._kinds()
        angles = {kind: self._rotary(kind) for kind in set(self.kinds)}
        turned = self._turned() if self.variant.unturned_layers else [True] * len(self.kinds)
        self.rotaries = [angles[kind] if each else None for kind, each in zip(self.kinds, turned, strict=True)]
        self.window = self.positions if SLIDING not in self.kinds else config.size("sliding_window")
        scale_field = self.variant.scale_field
        self.scale = (self.head_dim if scale_field is None else config.positive(scale_field)) ** -0.5
        self.out_bias, self.inner_bias = (
            field in self.variant.bias_fields and config.flag(field) for field in ("attention_bias", "mlp_bias")
        )
        self.qkv_bias = self.out_bias or self.variant.qkv_bias

    def _kinds(self) -> list[str]:
        """Return the kind of attention of each layer: full or sliding."""
        config, layers, stated = self.config, self.config.layers("num_hidden_layers"), self.config.get("layer_types")
        known = (FULL, SLIDING) if self.variant.windows else (FULL,)
        kinds = [FULL if config.get("sliding_window") is None else SLIDING] * layers if stated is None else stated
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            raise config.unsupported("layer_types", f"{' or '.join(map(repr, known))} for each of {layers} layers")
        return kinds

    def _turned(self) -> list[bool]:
        """Return for each layer whether it has rotary positions."""
        layers, stated = len(self.kinds), self.config.get("no_rope_layers")
        if not isinstance(stated, list) or len(stated) < layers or any(each not in (0, 1) for each in stated):
            raise self.config.unsupported("no_rope_layers", f"0 or 1 for each of {layers} layers")
        return [each == 1 for each in stated[:layers]]

    def _rotary(self, kind: str) -> Rotary:
        """Return the angles of one kind of layer."""
        stated, name = stated_rotary(self.config), "rotary"
        if self.variant.rotary_by_type:
            stated, name = stated_rotary(self.config, kind), f"rotary.{kind}"
        return read_rotary(self.config, stated, self.head_dim, self.positions, name)

    def layer(self, name: str, index: int) -> Layer:
        slides = self.kinds[index] == SLIDING and self.window < self.positions
        attention = Attention(
            qkv=self.projections(name + "self_attn."),
            out=self.linear(name + "self_attn.o_proj", self.heads * self.head_dim, self.hidden, self.out_bias),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            rotary=self.rotaries[index],
            head_norms=self.head_norms(name + "self_attn.") if self.variant.head_norms else None,
            window=self.window if slides else None,
        )
        parts = [
            self.linear(f"{name}mlp.{part}_proj", self.hidden, self.inner, self.inner_bias) for part in ("gate", "up")
        ]
        feed_forward = FeedForward(
            up=side_by_side(name + "mlp.gate_up", parts),
            down=self.linear(name + "mlp.down_proj", self.inner, self.hidden, self.inner_bias),
            activation=self.config.activation(self.variant.activation_field),
            gated=True,
        )
        norms, post_norms = (
            tuple(self.norm(name + each) for each in names) for names in (self.variant.norms, self.variant.post_norms)
        )
        return Layer(attention, None, feed_forward, norms, post_norms)

    def projections(self, name: str) -> Linear:
        """Return Q, K and V as one matrix."""
        widths = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        parts = [
            self.linear(f"{name}{part}_proj", self.hidden, heads * self.head_dim, self.qkv_bias)
            for part, heads in widths.items()
        ]
        return side_by_side(name + "qkv", parts)

    def head_norms(self, name: str) -> tuple[Norm, Norm]:
        """Return the norms of each head of Q, and of K."""
        return self.norm(name + "q_norm", self.head_dim), self.norm(name + "k_norm", self.head_dim)

    def norm(self, name: str, width: int | None = None) -> Norm:
        weight, offset = self.tensors.parameter(name + ".weight", width or self.hidden), self.variant.norm_offset
        return Norm(name, "rms", weight.plus(offset) if offset else weight, None, self.config.positive("rms_norm_eps"))

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
        "Gemma3ForCausalLM",
        "LlamaForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
    ),
    read=read,
)
