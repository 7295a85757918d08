"""GPT-NeoX and Pythia: a decoder with partial rotary positions, whose layers may run both parts in parallel.

Names and formulas follow transformers' GPTNeoXForCausalLM.
"""

from __future__ import annotations

import numpy as np

from hfx.exporter.families.family import Config, Family
from hfx.exporter.families.rotary import ROTARY_STEP, read_partial_rotary, read_positions, stated_rotary
from hfx.exporter.graph.blocks import Attention, FeedForward, Layer, Linear, Net, Norm, Stack
from hfx.exporter.tensors import CheckpointTensors

HEADS = ("embed_out.weight", "lm_head.weight")


def read(config: Config, tensors: CheckpointTensors) -> Net:
    """Return a GPT-NeoX checkpoint as blocks."""
    root = tensors.prefix("gpt_neox.")
    reader = _Reader(config, tensors, root)
    embedding, head = config.ends(tensors, reader.hidden, root + "embed_in.weight", heads=HEADS)
    stack = Stack(
        embedding=embedding,
        layers=tuple(reader.layer(f"{root}layers.{index}.") for index in range(config.layers("num_hidden_layers"))),
        final_norm=reader.norm(root + "final_layer_norm"),
        parallel=config.flag("use_parallel_residual"),
    )
    tensors.require()
    return Net("gpt_neox", stack, head, reader.positions)


class _Reader:
    """Reads the layers of one checkpoint."""

    def __init__(self, config: Config, tensors: CheckpointTensors, root: str) -> None:
        self.config, self.tensors, self.root = config, tensors, root
        self.linear = tensors.linear
        self.hidden, self.inner = config.size("hidden_size"), config.size("intermediate_size")
        self.heads = config.size("num_attention_heads")
        head_dim = config.head_dim("hidden_size", "num_attention_heads")
        self.head_dim = config.checked_head_dim(head_dim, "hidden_size / num_attention_heads", ROTARY_STEP)
        self.positions, self.bias = read_positions(config), config.flag("attention_bias")
        self.rotary, self.order = read_partial_rotary(config, stated_rotary(config), self.head_dim, self.positions)

    def layer(self, name: str) -> Layer:
        attention = Attention(
            qkv=self.projections(name + "attention.query_key_value"),
            out=self.linear(name + "attention.dense", self.hidden, self.hidden, self.bias),
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            rotary=self.rotary,
        )
        feed_forward = FeedForward(
            up=self.linear(name + "mlp.dense_h_to_4h", self.hidden, self.inner),
            down=self.linear(name + "mlp.dense_4h_to_h", self.inner, self.hidden),
            activation=self.config.activation("hidden_act"),
        )
        norms = self.norm(name + "input_layernorm"), self.norm(name + "post_attention_layernorm")
        return Layer(attention, None, feed_forward, norms)

    def projections(self, name: str) -> Linear:
        """Return Q, K and V as one matrix, reordered from the checkpoint's [heads, 3, head_dim]."""
        rows = np.arange(3 * self.hidden).reshape(self.heads, 3, self.head_dim)
        turned, plain = rows[:, :2, self.order], rows[:, 2:]
        order = np.concatenate([turned, plain], axis=1).swapaxes(0, 1).reshape(-1)
        linear = self.linear(name, self.hidden, 3 * self.hidden, self.bias)
        return Linear(name, linear.weight.reordered(order), linear.bias and linear.bias.reordered(order))

    def norm(self, name: str) -> Norm:
        weight, bias = (self.tensors.parameter(f"{name}.{part}", self.hidden) for part in ("weight", "bias"))
        return Norm(name, "layer", weight, bias, self.config.positive("layer_norm_eps"))


FAMILY = Family("gpt_neox", "decoder", ("gpt_neox",), ("GPTNeoXForCausalLM",), read)
