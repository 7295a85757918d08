"""The OpenVINO models of a generator: a decoder alone, or an encoder and the decoder's steps for any number of beams.

Inputs and outputs are those that python_backends/engine feeds. What a weight format means for OpenVINO is here too:
how activations are quantized, and the type of K and V in pages. Norms and activations have the forms that OpenVINO
fuses with what stands before them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import (
    Activation,
    Attention,
    CrossAttention,
    Embedding,
    FeedForward,
    Kind,
    Layer,
    Net,
    Norm,
    Stack,
)
from hfx.exporter.openvino.attention import (
    EncoderAttention,
    RowSelfAttention,
    angles_at,
    attend_own_pages,
    attend_source,
    pad_bias,
    source_bias,
)
from hfx.exporter.openvino.graph import ANY, OpenVinoGraph, Value
from hfx.exporter.openvino.linear import Activations, HeadWriter, LinearWriter, padded, vector
from hfx.exporter.quantize.generator import Formats, WeightFormat
from hfx.python_backends.engine.ort.sessions import CPUINFO

PagedType = Literal["u8", "f16", "f32"]
GROUP = 128  # channels of a row that share a scale: 32, OpenVINO's default, takes 1.1 to 1.2 times as long in batches
DECODER, ENCODER = "decoder", "encoder"
QUICK_GELU_ALPHA = 1.702
SelfAttend = Callable[[Value, int, Attention], Value]
CrossAttend = Callable[[Value, int, CrossAttention], Value]
Part = Callable[[Value], Value]


def activations_for(cpuinfo: Path = CPUINFO) -> Activations:
    """By row where the processor multiplies tiles of bytes (AMX), else by group: see linear.py."""
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "row" if "amx_int8" in flags else "group"


def paged_type(formats: Formats, kind: Kind) -> PagedType:
    """Exact in fp32. Else a byte, with scales by channel and block of 32 tokens, where no other graph fills pages.

    An encoder writes K and V of sources from outside, and bytes have a layout of OpenVINO's own.
    """
    if formats.precision == "fp32":
        return "f32"
    return "u8" if kind == "decoder" and formats.head != "fp32" else "f16"


def dynamic_group(formats: Formats) -> int:
    """OpenVINO's DYNAMIC_QUANTIZATION_GROUP_SIZE; 0: nothing is quantized at run time."""
    if formats.precision == "fp32":
        return 0
    return min(GROUP, formats.block) if formats.linear == "int4" else GROUP


@dataclass(frozen=True)
class GeneratorWriter:
    """Writes the models of `net`; `levels` is the largest int8 weight."""

    net: Net
    formats: Formats
    levels: int
    activations: Activations

    def decoder(self, path: Path) -> None:
        """A flat row of tokens, of any mix of prompts, parts of prompts and single tokens, for models without encoder.

        `last` [sequences] says where each sequence's last token stands; the outputs are those tokens'.
        """
        graph = OpenVinoGraph(DECODER)
        ids, positions = (graph.input(name, np.int64, [ANY]) for name in ("input_ids", "position_ids"))
        stack = self.net.decoder
        angles = None if stack.rotary is None else angles_at(graph, stack.rotary, positions)
        layers = self._stack(graph, self.formats.linear, partial(attend_own_pages, graph, angles=angles))
        hidden = layers(stack, ids, positions)
        last = graph.input("last", np.int64, [ANY])
        self._head(graph, ops.gather(hidden, last, graph.const(0, np.int64)))
        graph.save(path)

    def steps(self, path: Path) -> None:
        """One token for each row of requests with a source; row = request * beams + beam."""
        stack, graph = self.net.decoder, OpenVinoGraph(DECODER)
        ids, positions = (graph.input(name, np.int64, [ANY]) for name in ("input_ids", "position_ids"))
        cross = partial(attend_source, graph)
        rows = stack.bias and RowSelfAttention(graph, positions, stack.bias, [])
        attend = rows or partial(attend_own_pages, graph)
        self._head(graph, self._stack(graph, self.formats.linear, attend, cross)(stack, ids, positions))
        if rows:
            attention = stack.layers[0].attention
            graph.output("new_kv", rows.new_kv(attention.heads, attention.head_dim))
        graph.save(path)

    def encoder(self, path: Path, stack: Stack) -> None:
        """Sources, right-padded, to K and V of every decoder layer: cross_{i} [sources, 2, heads, length, dim]."""
        graph = OpenVinoGraph(ENCODER)
        ids = graph.input("input_ids", np.int64, [ANY, ANY])
        lead, flat, zero = ops.shape_of(ids), graph.const([-1], np.int64), graph.const(0, np.int64)
        length = ops.gather(lead, graph.const(1, np.int64), zero)
        count = ops.range(zero, length, graph.const(1, np.int64), "i64")
        places = ops.broadcast(count, lead)
        if stack.pad_id is not None:
            others = ops.convert(ops.not_equal(ids, graph.const(stack.pad_id, np.int64)), "i64")
            places = ops.cum_sum(others, graph.const(1, np.int64), exclusive=True)
        bias = pad_bias(graph, count, graph.input("lengths", np.int64, [ANY]))
        if stack.bias is not None:
            bias = ops.add(bias, source_bias(graph, length, stack.bias))
        layers = self._stack(graph, self.formats.encoder, EncoderAttention(graph, lead, bias))
        hidden = layers(stack, ops.reshape(ids, flat, False), ops.reshape(places, flat, False))
        for index, layer in enumerate(self.net.decoder.layers):
            if layer.cross is not None:
                memory = layers.linear(hidden, layer.cross.memory)
                parts = graph.const([2, layer.cross.heads, layer.cross.head_dim], np.int64)
                by_part = ops.reshape(memory, ops.concat([lead, parts], 0), False)
                by_head = ops.transpose(by_part, graph.const([0, 2, 3, 1, 4], np.int64))
                graph.output(f"cross_{index}", ops.convert(by_head, self.pages))
        graph.save(path)

    @property
    def pages(self) -> PagedType:
        """How K and V in pages are kept."""
        return paged_type(self.formats, self.net.kind)

    def _head(self, graph: OpenVinoGraph, hidden: Value) -> None:
        HeadWriter(graph, self._linear(graph, self.formats.head))(hidden, self.net.head, self.net.vocab_size)

    def _stack(
        self, graph: OpenVinoGraph, weights: WeightFormat, attend: SelfAttend, cross: CrossAttend | None = None
    ) -> StackWriter:
        tables = self.formats.embedding if self.net.head.embedding is None else self.formats.head
        return StackWriter(graph, self._linear(graph, weights), tables, attend, cross)

    def _linear(self, graph: OpenVinoGraph, weights: WeightFormat) -> LinearWriter:
        # Beside quantization that stands in a graph, OpenVINO unpacks 4 bits to float32: 6 times as slow.
        packed = "int4" in (self.formats.linear, self.formats.head) and graph.name == DECODER
        activations: Activations = "group" if packed else self.activations
        return LinearWriter(graph, weights, self.levels, self.formats.block, activations)


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
