"""The OpenVINO models of a generator: a decoder alone, or an encoder and the decoder's steps for any number of beams.

Inputs and outputs are those that python_backends/engine feeds. What a weight format means for OpenVINO is here too:
how activations are quantized, and the type of K and V in pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import Kind, Net, Stack
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
from hfx.exporter.openvino.head import HeadWriter
from hfx.exporter.openvino.linear import Activations, LinearWriter
from hfx.exporter.openvino.stack import CrossAttend, SelfAttend, StackWriter
from hfx.exporter.quantize.generator import Formats, WeightFormat
from hfx.python_backends.engine.ort.sessions import CPUINFO

PagedType = Literal["u8", "f16", "f32"]
GROUP = 128  # channels of a row that share a scale: 32, OpenVINO's default, takes 1.1 to 1.2 times as long in batches
DECODER, ENCODER = "decoder", "encoder"


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
