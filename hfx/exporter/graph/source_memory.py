"""What the encoder leaves for the decoder's cross attention: K and V of each source, as they are or in int8.

In int8 every channel of every source has a scale of its own, so that no request's precision depends on its neighbours.
The decoder multiplies queries by the scales of K, and what it attends to by those of V: nothing else changes, and a
step reads a quarter of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hfx.exporter.graph.attention import SEQLENS_K
from hfx.exporter.graph.formats import CrossType
from hfx.exporter.graph.writer import GraphWriter, Shape, Value

LEVELS = 127
TINY = 1e-12  # a channel of zeros has no scale


@dataclass(frozen=True)
class SourceMemoryWriter:
    """Writes the outputs cross_{i}, and cross_scale_{i} in int8. `lead` is the shape [requests, source, -1]."""

    writer: GraphWriter
    lead: Value
    kept: CrossType

    def without_pads(self, hidden: Value, places: Value) -> Value:
        """`hidden` [tokens, width] with the last token of each source in the place of its pads.

        So no pad, whose hidden state depends on the batch's width, is the largest of a channel. `places` [requests,
        source] are the positions.
        """
        if self.kept != "int8":
            return hidden
        writer = self.writer
        last = writer.cast(writer.node("Unsqueeze", [SEQLENS_K, writer.const([1], np.int64)]), np.int64)
        index = writer.node("Unsqueeze", [writer.node("Min", [places, last]), writer.const([2], np.int64)])
        by_source = writer.node("GatherND", [writer.node("Reshape", [hidden, self.lead]), index], batch_dims=1)
        flat = writer.node("Concat", [writer.const([-1], np.int64), self._width(hidden)], axis=0)
        return writer.node("Reshape", [by_source, flat])

    def __call__(self, layer: int, memory: Value, width: int) -> None:
        """`memory` [tokens, width]: K, then V, of each position."""
        writer = self.writer
        by_source = writer.node("Reshape", [memory, self.lead])
        name = f"cross_{layer}"
        shape: Shape = ["requests", "source", width]
        if self.kept != "int8":
            whole = by_source if writer.compute is np.float32 else writer.cast(by_source, np.float32)
            writer.output(name, np.float32, shape, whole)
            return
        peak = writer.node("ReduceMax", [writer.node("Abs", [by_source]), writer.const([1], np.int64)], keepdims=1)
        least = writer.node("Max", [peak, writer.const(TINY, np.float32)])
        scale = writer.node("Mul", [least, writer.const(1 / LEVELS, np.float32)])
        steps = writer.node("Div", [by_source, scale])
        kept = writer.node("QuantizeLinear", [steps, writer.const(1.0, np.float32), writer.const(0, np.int8)])
        writer.output(name, np.int8, shape, kept)
        by_channel = writer.node("Squeeze", [scale, writer.const([1], np.int64)])
        writer.output(f"cross_scale_{layer}", np.float32, ["requests", width], by_channel)

    def _width(self, hidden: Value) -> Value:
        return self.writer.node("Shape", [hidden], start=1, end=2)
