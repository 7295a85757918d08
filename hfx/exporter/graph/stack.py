"""An encoder's or decoder's layers in order: residuals, and norms before or behind its parts.

Activations are [tokens, hidden].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hfx.exporter.graph.blocks import Attention, CrossAttention, FeedForward, Linear, Norm, Stack
from hfx.exporter.graph.embedding import EmbeddingWriter
from hfx.exporter.graph.linear import LinearWriter
from hfx.exporter.graph.norms import activation, norm, skip_norm
from hfx.exporter.graph.writer import FloatType, GraphWriter, Value

SelfAttend = Callable[[Value, int, Attention], Value]
CrossAttend = Callable[[Value, int, CrossAttention], Value]


def no_cross_attention(query: Value, layer: int, block: CrossAttention) -> Value:
    """For stacks without a source."""
    raise ValueError(f"layer {layer} attends to a source that the graph doesn't have")


@dataclass(frozen=True)
class StackWriter:
    """Writes a stack with the attention that its graph needs.

    `down` writes the last linear of a feed forward, and `residual` is the type of the residual stream: both may be
    float32 in a graph of float16.
    """

    writer: GraphWriter
    linear: LinearWriter
    down: LinearWriter
    embed: EmbeddingWriter
    attend: SelfAttend
    cross: CrossAttend
    residual: FloatType

    def __call__(self, stack: Stack, ids: Value, positions: Value | None) -> Value:
        """The last hidden state [tokens, hidden] of `ids` [tokens] at `positions` [tokens]."""
        norms = _closing_norms(stack)
        normed, residual = self._enter(stack, ids, positions)

        def close(y: Value) -> tuple[Value, Value]:
            out, total = skip_norm(self.writer, y, residual, next(norms), self.residual)
            return self._narrow(out), total if stack.pre_norm else out

        for index, layer in enumerate(stack.layers):
            qkv = self.linear(normed, layer.attention.qkv)
            attended = self.attend(qkv, index, layer.attention)
            normed, residual = close(self._projected(attended, layer.attention.out, self.linear))
            if layer.cross is not None:
                attended = self.cross(self.linear(normed, layer.cross.query), index, layer.cross)
                normed, residual = close(self._projected(attended, layer.cross.out, self.linear))
            activated = self._activated(normed, layer.feed_forward)
            normed, residual = close(self._projected(activated, layer.feed_forward.down, self.down))
        return normed

    def _enter(self, stack: Stack, ids: Value, positions: Value | None) -> tuple[Value, Value]:
        """What the first layer reads, and the residual beside it."""
        writer = self.writer
        x = self._cast(self.embed(ids, stack.embedding), writer.compute, self.residual)
        if stack.positions is not None and positions is not None:
            places = writer.node("Gather", [writer.vector(stack.positions, self.residual), positions])
            x = writer.node("Add", [x, places])
        if stack.embedding_norm is not None:
            x = norm(writer, x, stack.embedding_norm, self.residual)
        if not stack.pre_norm:
            return self._narrow(x), x
        return self._narrow(norm(writer, x, stack.layers[0].norms[0], self.residual)), x

    def _projected(self, x: Value, block: Linear, linear: LinearWriter) -> Value:
        """What `block` adds to the residual."""
        y = linear(self._cast(x, self.writer.compute, linear.dtype), block)
        return self._cast(y, linear.dtype, self.residual)

    def _activated(self, x: Value, block: FeedForward) -> Value:
        writer = self.writer
        if not block.gated:
            return activation(writer, self.linear.product(x, block.up), block.activation, block.up.bias)
        gate, value = writer.unique("gate"), writer.unique("value")
        writer.nodes("Split", [self.linear(x, block.up)], [gate, value], axis=-1, num_outputs=2)
        return writer.node("Mul", [activation(writer, gate, block.activation), value])

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
