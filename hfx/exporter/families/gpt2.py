"""GPT-2: a decoder with learned positions, layer norms before its parts, and one matrix for Q, K and V.

Names and formulas follow transformers' GPT2LMHeadModel.
"""

from __future__ import annotations

import math

from hfx.exporter.families.family import Config, Family
from hfx.exporter.graph.blocks import Attention, FeedForward, Layer, Linear, Net, Norm, Stack
from hfx.exporter.tensors import CheckpointTensors

FEED_FORWARD_FACTOR = 4  # n_inner's default, in hidden sizes


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return a GPT-2 checkpoint as blocks."""
    config.refuse("add_cross_attention", False)
    config.head_dim("n_embd", "n_head")
    hidden, positions = config.size("n_embd"), config.size("n_positions")
    root = tensors.prefix("transformer.")
    reader = _Reader(config, tensors, root)
    embedding, head = config.ends(tensors, hidden, root + "wte.weight")
    stack = Stack(
        embedding=embedding,
        positions=tensors.parameter(root + "wpe.weight", positions, hidden),
        layers=tuple(reader.layer(index) for index in range(config.layers("n_layer"))),
        final_norm=reader.norm(root + "ln_f"),
    )
    tensors.require()
    return Net("gpt2", stack, head, positions)


class _Reader:
    """Reads the layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.hidden, self.heads = config.size("n_embd"), config.size("n_head")
        inner = config.get("n_inner")
        self.inner = FEED_FORWARD_FACTOR * self.hidden if inner is None else config.size("n_inner")

    def layer(self, index: int) -> Layer:
        name = f"{self.root}h.{index}."
        head_dim = self.hidden // self.heads
        attention = Attention(
            qkv=self.conv1d(name + "attn.c_attn", self.hidden, 3 * self.hidden),
            out=self.conv1d(name + "attn.c_proj", self.hidden, self.hidden),
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=head_dim,
            scale=self.scale(index, head_dim),
        )
        feed_forward = FeedForward(
            up=self.conv1d(name + "mlp.c_fc", self.hidden, self.inner),
            down=self.conv1d(name + "mlp.c_proj", self.inner, self.hidden),
            activation=self.config.activation("activation_function"),
        )
        return Layer(attention, None, feed_forward, (self.norm(name + "ln_1"), self.norm(name + "ln_2")))

    def scale(self, index: int, head_dim: int) -> float:
        """Return the factor of scores; `reorder_and_upcast_attn` only moves this factor, for half precision."""
        scale = 1 / math.sqrt(head_dim) if self.config.flag("scale_attn_weights") else 1.0
        return scale / (index + 1) if self.config.flag("scale_attn_by_inverse_layer_idx") else scale

    def conv1d(self, name: str, inputs: int, outputs: int) -> Linear:
        """Return transformers' Conv1D, whose weight is [inputs, outputs], as a linear."""
        weight = self.tensors.transposed(name + ".weight", inputs, outputs)
        return Linear(name, weight, self.tensors.parameter(name + ".bias", outputs))

    def norm(self, name: str) -> Norm:
        weight, bias = (self.tensors.parameter(f"{name}.{part}", self.hidden) for part in ("weight", "bias"))
        return Norm(name, "layer", weight, bias, self.config.positive("layer_norm_epsilon"))


FAMILY = Family("gpt2", "decoder", ("gpt2",), ("GPT2LMHeadModel", "GPT2Model"), read)
