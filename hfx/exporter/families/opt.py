"""OPT: a decoder with learned positions, norms before or after its parts, and sometimes narrow embeddings (OPT-350m).

Names and formulas follow transformers' OPTForCausalLM.
"""

from __future__ import annotations

import numpy as np

from hfx.exporter.families.family import Config, Family
from hfx.exporter.graph.blocks import Attention, FeedForward, Layer, Linear, Net, Norm, Stack, constant, side_by_side
from hfx.exporter.tensors import CheckpointTensors

EPSILON = 1e-5  # torch's default; the config has no field for it
FIRST_POSITION = 2  # the row of the first position in the table


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return an OPT checkpoint as blocks."""
    pre_norm = config.flag("do_layer_norm_before")
    if pre_norm:
        config.refuse("_remove_final_layer_norm", False)
    root = tensors.prefix("model.") + "decoder."
    reader = _Reader(config, tensors)
    positions = config.size("max_position_embeddings")
    places = tensors.parameter(root + "embed_positions.weight", positions + FIRST_POSITION, reader.hidden)
    width = config.size("word_embed_proj_dim")
    projections: tuple[Linear | None, Linear | None] = None, None
    if width != reader.hidden:
        projections = (
            tensors.linear(root + "project_in", width, reader.hidden, bias=False),
            tensors.linear(root + "project_out", reader.hidden, width, bias=False),
        )
    embedding, head = config.ends(tensors, width, root + "embed_tokens.weight", projections=projections)
    stack = Stack(
        embedding=embedding,
        positions=places.rows(FIRST_POSITION, positions + FIRST_POSITION),
        layers=tuple(reader.layer(f"{root}layers.{index}.") for index in range(config.layers("num_hidden_layers"))),
        pre_norm=pre_norm,
        final_norm=reader.norm(root + "final_layer_norm") if pre_norm else None,
    )
    tensors.require()
    return Net("opt", stack, head, positions)


class _Reader:
    """Reads the layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors) -> None:
        self.config, self.tensors = config, tensors
        self.hidden, self.inner = config.size("hidden_size"), config.size("ffn_dim")
        self.heads = config.size("num_attention_heads")
        self.head_dim = config.head_dim("hidden_size", "num_attention_heads")
        self.bias, self.learned = config.flag("enable_bias"), config.flag("layer_norm_elementwise_affine")

    def layer(self, name: str) -> Layer:
        parts = [self.linear(f"{name}self_attn.{part}_proj", self.hidden, self.hidden) for part in "qkv"]
        attention = Attention(
            qkv=side_by_side(name + "self_attn.qkv", parts),
            out=self.linear(name + "self_attn.out_proj", self.hidden, self.hidden),
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )
        feed_forward = FeedForward(
            up=self.linear(name + "fc1", self.hidden, self.inner),
            down=self.linear(name + "fc2", self.inner, self.hidden),
            activation=self.config.activation("activation_function"),
        )
        norms = self.norm(name + "self_attn_layer_norm"), self.norm(name + "final_layer_norm")
        return Layer(attention, None, feed_forward, norms)

    def linear(self, name: str, inputs: int, outputs: int) -> Linear:
        return self.tensors.linear(name, inputs, outputs, self.bias)

    def norm(self, name: str) -> Norm:
        if not self.learned:
            return Norm(name, "layer", constant(name + ".weight", np.ones(self.hidden, np.float32)), None, EPSILON)
        weight, bias = (self.tensors.parameter(f"{name}.{part}", self.hidden) for part in ("weight", "bias"))
        return Norm(name, "layer", weight, bias, EPSILON)


FAMILY = Family("opt", "decoder", ("opt",), ("OPTForCausalLM", "OPTModel"), read)
