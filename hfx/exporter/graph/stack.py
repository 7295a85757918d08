"""An encoder's or decoder's layers in order: residuals, and norms before or behind its parts.

Activations are [tokens, hidden]. On the CPU a residual addition stays a node of its own: onnxruntime's
SkipLayerNormalization took 4 to 6 times as long as Add and LayerNormalization (8 to 512 rows of 768), the one for
root-mean-square norms 1.3 to 2 times. It fuses the two by itself only on three axes, and activations here have two. On
a GPU, where each node is a launch, they are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hfx.exporter.graph.blocks import Attention, CrossAttention, Linear, Norm, Stack
from hfx.exporter.graph.linear import LinearWriter
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value

SelfAttend = Callable[[Value, int, Attention], Value]
CrossAttend = Callable[[Value, int, CrossAttention], Value]


def norm(writer: GraphWriter, x: Value, block: Norm, dtype: FloatType) -> Value:
    """`block` of x [tokens, hidden], which is `dtype`."""
    if block.kind == "layer":
        return writer.node(
            "LayerNormalization", [x, *_parameters(writer, block, dtype)], axis=-1, epsilon=block.epsilon
        )
    # Spelled out: onnxruntime fuses it, and its own operator for it stands in ONNX's domain, where checkers refuse it.
    square = writer.node("Pow", [x, writer.const(2.0, dtype)])
    mean = writer.node("ReduceMean", [square, writer.const([-1], np.int64)], keepdims=1)
    root = writer.node("Sqrt", [writer.node("Add", [mean, writer.const(block.epsilon, dtype)])])
    return writer.node("Mul", [writer.node("Div", [x, root]), *_parameters(writer, block, dtype)])


def skip_norm(writer: GraphWriter, x: Value, residual: Value, block: Norm, dtype: FloatType) -> tuple[Value, Value]:
    """(`block` of the sum, the sum) of x + residual, which are `dtype`."""
    if dtype is np.float32 or block.kind == "rms":
        total = writer.node("Add", [x, residual])
        return norm(writer, total, block, dtype), total
    normed, total = writer.unique("normed"), writer.unique("sum")
    inputs = [x, residual, *_parameters(writer, block, dtype)]
    writer.nodes("SkipLayerNormalization", inputs, [normed, "", "", total], CONTRIB, epsilon=block.epsilon)
    return normed, total


def _parameters(writer: GraphWriter, block: Norm, dtype: FloatType) -> list[Value]:
    return [writer.vector(parameter, dtype) for parameter in (block.weight, block.bias) if parameter is not None]


@dataclass(frozen=True)
class StackWriter:
    """Writes a stack with the attention that its graph needs.

    `table` reads embeddings, `down` writes the last linear of a feed forward, and `residual` is the type of the
    residual stream; the latter two may be float32 in a graph of float16.
    """

    writer: GraphWriter
    linear: LinearWriter
    down: LinearWriter
    table: LinearWriter
    attend: SelfAttend
    cross: CrossAttend | None
    residual: FloatType

    def __call__(self, stack: Stack, ids: Value, positions: Value | None) -> Value:
        """The last hidden state [tokens, hidden] of `ids` [tokens] at `positions` [tokens]."""
        norms = _closing_norms(stack)
        normed, residual = self._enter(stack, ids, positions)

        def close(x: Value, block: Linear, linear: LinearWriter) -> tuple[Value, Value]:
            out, total = self._closed(x, block, linear, residual, next(norms))
            return self._narrow(out), total if stack.pre_norm else out

        for index, layer in enumerate(stack.layers):
            qkv = self.linear(normed, layer.attention.qkv)
            attended = self.attend(qkv, index, layer.attention)
            normed, residual = close(attended, layer.attention.out, self.linear)
            if layer.cross is not None and self.cross is not None:
                attended = self.cross(self.linear(normed, layer.cross.query), index, layer.cross)
                normed, residual = close(attended, layer.cross.out, self.linear)
            block = layer.feed_forward
            activated = self.linear.activated(normed, block.up, block.activation, block.gated)
            normed, residual = close(activated, block.down, self.down)
        return normed

    def _enter(self, stack: Stack, ids: Value, positions: Value | None) -> tuple[Value, Value]:
        """What the first layer reads, and the residual beside it."""
        writer = self.writer
        x = self._cast(self.table.rows(ids, stack.embedding), writer.compute, self.residual)
        if stack.positions is not None and positions is not None:
            if stack.pad_id is not None:
                is_pad = writer.node("Equal", [ids, writer.const(stack.pad_id, np.int64)])
                last = writer.const(stack.positions.shape[0] - 1, np.int64)
                positions = writer.node("Where", [is_pad, last, positions])
            places = writer.node("Gather", [writer.vector(stack.positions, self.residual), positions])
            x = writer.node("Add", [x, places])
        if stack.embedding_norm is not None:
            x = norm(writer, x, stack.embedding_norm, self.residual)
        if not stack.pre_norm:
            return self._narrow(x), x
        return self._narrow(norm(writer, x, stack.layers[0].norms[0], self.residual)), x

    def _closed(
        self, x: Value, block: Linear, linear: LinearWriter, residual: Value, closing: Norm
    ) -> tuple[Value, Value]:
        """(`closing` of the sum, the sum) of `block` of x and the residual."""
        x = self._cast(x, self.writer.compute, linear.dtype)
        if linear.dtype is np.float32 and self.residual is np.float32:
            total = linear.added(x, block, residual)
            return norm(self.writer, total, closing, self.residual), total
        y = self._cast(linear(x, block), linear.dtype, self.residual)
        return skip_norm(self.writer, y, residual, closing, self.residual)

    def _narrow(self, x: Value) -> Value:
        return self._cast(x, self.residual, self.writer.compute)

    def _cast(self, x: Value, dtype: FloatType, wanted: FloatType) -> Value:
        return x if dtype is wanted else self.writer.cast(x, wanted)


def _closing_norms(stack: Stack) -> Iterator[Norm]:
    """The norm that follows each residual addition, in order."""
    norms = [block for layer in stack.layers for block in layer.norms]
    if not stack.pre_norm:
        return iter(norms)
    if stack.final_norm is None:
        raise ValueError("a stack with norms before its parts ends with a norm")
    return iter([*norms[1:], stack.final_norm])
