"""An encoder's or decoder's layers in order: embeddings, residuals, norms before or behind its parts, activations.

Norms and activations have the forms that OpenVINO fuses with what stands before them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import Activation, Attention, CrossAttention, Embedding, FeedForward, Layer, Norm, Stack
from hfx.exporter.openvino.graph import OpenVinoGraph, Value
from hfx.exporter.openvino.head import padded
from hfx.exporter.openvino.linear import LinearWriter, vector
from hfx.exporter.quantize.generator import WeightFormat

QUICK_GELU_ALPHA = 1.702
SelfAttend = Callable[[Value, int, Attention], Value]
CrossAttend = Callable[[Value, int, CrossAttention], Value]
Part = Callable[[Value], Value]


def norm(graph: OpenVinoGraph, x: Value, block: Norm) -> Value:
    """`block` of x [tokens, hidden]."""
    last = graph.const([-1], np.int64)
    if block.kind == "layer":
        y = ops.multiply(ops.mvn(x, last, True, block.epsilon, "inside_sqrt"), vector(graph, block.weight))
        return y if block.bias is None else ops.add(y, vector(graph, block.bias))
    mean = ops.reduce_mean(ops.power(x, graph.const(2.0, np.float32)), last, True)
    root = ops.sqrt(ops.add(mean, graph.const(block.epsilon, np.float32)))
    return ops.multiply(ops.multiply(x, ops.divide(graph.const(1.0, np.float32), root)), vector(graph, block.weight))


def activation(graph: OpenVinoGraph, x: Value, kind: Activation) -> Value:
    """`kind` of x."""
    if kind == "relu":
        return ops.relu(x)
    if kind == "silu":
        return ops.swish(x)
    if kind == "quick_gelu":
        return ops.swish(x, graph.const(QUICK_GELU_ALPHA, np.float32))
    return ops.gelu(x, "tanh" if kind == "gelu_tanh" else "erf")


@dataclass(frozen=True)
class StackWriter:
    """Writes a stack with the attention that its graph needs. `tables` is the format of embeddings."""

    graph: OpenVinoGraph
    linear: LinearWriter
    tables: WeightFormat
    attend: SelfAttend
    cross: CrossAttend | None

    def __call__(self, stack: Stack, ids: Value, positions: Value) -> Value:
        """The last hidden state [tokens, hidden] of `ids` [tokens] at `positions` [tokens]."""
        graph = self.graph
        x = self._embedded(ids, stack.embedding)
        if stack.positions is not None:
            table = graph.weight(stack.positions.read(), stack.positions.name)
            if stack.pad_id is not None:
                is_pad = ops.equal(ids, graph.const(stack.pad_id, np.int64))
                positions = ops.select(is_pad, graph.const(stack.positions.shape[0] - 1, np.int64), positions)
            x = ops.add(x, ops.gather(table, positions, graph.const(0, np.int64)))
        if stack.embedding_norm is not None:
            x = norm(graph, x, stack.embedding_norm)
        for index, layer in enumerate(stack.layers):
            for part, block in zip(self._parts(index, layer), layer.norms, strict=True):
                x = self._joined(x, part, block, stack.pre_norm)
        return x if stack.final_norm is None else norm(graph, x, stack.final_norm)

    def _joined(self, x: Value, part: Part, block: Norm, pre_norm: bool) -> Value:
        """The residual behind `part`."""
        if pre_norm:
            return ops.add(x, part(norm(self.graph, x, block)))
        return norm(self.graph, ops.add(x, part(x)), block)

    def _parts(self, index: int, layer: Layer) -> list[Part]:
        """What each norm of a layer belongs to, in order."""
        attention, cross, attend_source = layer.attention, layer.cross, self.cross
        parts: list[Part] = [
            lambda x: self.linear(self.attend(self.linear(x, attention.qkv), index, attention), attention.out)
        ]
        if cross is not None and attend_source is not None:
            parts.append(lambda x: self.linear(attend_source(self.linear(x, cross.query), index, cross), cross.out))
        return [*parts, lambda x: self._fed_forward(x, layer.feed_forward)]

    def _fed_forward(self, x: Value, block: FeedForward) -> Value:
        up = self.linear(x, block.up)
        if not block.gated:
            return self.linear(activation(self.graph, up, block.activation), block.down)
        gate, value = ops.split(up, self.graph.const(1, np.int64), 2).outputs()
        return self.linear(ops.multiply(activation(self.graph, gate, block.activation), value), block.down)

    def _embedded(self, ids: Value, embedding: Embedding) -> Value:
        graph, linear = self.graph, self.linear
        # Padded as the head's matrix, which it may be: then the file has it once.
        table = linear.table(padded(embedding.table), self.tables)
        rows = ops.gather(table, ids, graph.const(0, np.int64))
        return rows if embedding.scale == 1.0 else ops.multiply(rows, graph.const(embedding.scale, np.float32))
