"""Linear layers of OpenVINO's graphs in every weight format, with activations quantized by row or by group.

Both ways a row's result never depends on the other rows. By group, OpenVINO quantizes the activations itself, with a
scale for each group of a row's channels, where the processor has VNNI; with AMX it would compute in bfloat16 instead,
or not use AMX at all. By row, the quantization stands in the graph, and OpenVINO multiplies with whatever the processor
has for 8 bits: with AMX that is 1.5 times as fast at 128 rows, elsewhere 5 to 15 % slower.

The head's outputs are `next_ids`, `logits` and `logit_scale`. The vocabulary is padded to whole groups, whose best are
found first: six times as fast as one search through a row of 50,257.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import FloatArray, Head, Linear, Parameter
from hfx.exporter.openvino.graph import OpenVinoGraph, Value
from hfx.exporter.quantize.generator import HALF, WeightFormat, fill_int8, int4_blocks

Activations = Literal["row", "group"]
LEVELS = 127  # of activations
TINY = 1e-12  # a row of zeros has no scale
ZERO = 128  # where 8 bits without a sign have their zero
GROUP = 128  # tokens of the vocabulary
NEVER = -1e30  # the score of a token that pads the vocabulary


@dataclass(frozen=True)
class LinearWriter:
    """Linears of one graph in one format. `levels` is the largest int8 weight, `block` the width of an int4 block."""

    graph: OpenVinoGraph
    format: WeightFormat
    levels: int
    block: int
    activations: Activations

    def __call__(self, x: Value, linear: Linear) -> Value:
        """`linear` of `x` [rows, inputs], its bias included."""
        y, scale = self.unscaled(x, linear.weight)
        if scale is not None:
            y = ops.multiply(y, scale)
        return y if linear.bias is None else ops.add(y, vector(self.graph, linear.bias))

    def unscaled(self, x: Value, weight: Parameter) -> tuple[Value, Value | None]:
        """x times the transposed `weight`, and what each row is still to be multiplied by; None: nothing."""
        table = self.table(weight, self.format)
        if not (self.format == "int8" and self.activations == "row"):
            return ops.matmul(x, table, False, True), None
        rows, peak = _quantized_rows(self.graph, x)
        return ops.matmul(rows, table, False, True), peak

    def table(self, weight: Parameter, form: WeightFormat) -> Value:
        """`weight` [outputs, inputs] as float32, from the numbers that are stored in `form`; once a graph."""
        graph, key = self.graph, ("weight", weight.name, form)
        if key not in graph.memo:
            if form == "int8":
                graph.memo[key] = _int8(graph, weight, self.levels, signed=self.activations == "row")
            elif form == "int4":
                graph.memo[key] = _int4(graph, weight, self.block)
            else:
                graph.memo[key] = graph.weight(weight.read(), weight.name)
        return graph.memo[key]


def vector(graph: OpenVinoGraph, parameter: Parameter) -> Value:
    """A parameter [n] as it is, as [1, n]."""
    return graph.const(parameter.read()[None], np.float32)


def _int8(graph: OpenVinoGraph, weight: Parameter, levels: int, signed: bool) -> Value:
    """A scale a row. OpenVINO's dynamic quantization is faster with bytes without a sign; int8 products want one."""
    values = np.empty(weight.shape, np.int8)
    scale = graph.const(fill_int8(values, weight, levels)[:, None], np.float32)
    if signed:
        return ops.multiply(ops.convert(graph.weight(values, weight.name), np.float32), scale).output(0)
    shifted = values.view(np.uint8)
    shifted += np.uint8(ZERO)  # -128 is 128 of the same bits, and wraps around to 0
    zeros = graph.const(np.full((weight.shape[0], 1), ZERO), np.uint8)
    floats = ops.convert(graph.weight(shifted, weight.name), np.float32)
    return ops.multiply(ops.subtract(floats, ops.convert(zeros, np.float32)), scale).output(0)


def _int4(graph: OpenVinoGraph, weight: Parameter, block: int) -> Value:
    """A scale for each block of a row; of rows that blocks don't divide, for the largest part of one that does."""
    outputs, inputs = weight.shape
    width = math.gcd(inputs, block)
    if width % 2:  # two numbers are a byte: rows of an odd size are padded
        width = block
    pieces = list(int4_blocks(weight, width))
    packed = np.concatenate([values for values, _ in pieces])
    scale = np.concatenate([found for _, found in pieces])[..., None]
    padded = -(-inputs // width) * width
    values = graph.packed(packed, (outputs, padded // width, width), weight.name)
    zero = ops.convert(graph.const(np.full((1, 1, 1), HALF), np.uint8), np.float32)
    floats = ops.multiply(ops.subtract(ops.convert(values, np.float32), zero), graph.const(scale, np.float32))
    table = ops.reshape(floats, graph.const([outputs, padded], np.int64), False)
    if padded != inputs:
        table = ops.gather(table, graph.const(np.arange(inputs), np.int64), graph.const(1, np.int64))
    return table.output(0)


def _quantized_rows(graph: OpenVinoGraph, x: Value) -> tuple[Value, Value]:
    """Each row of x over its peak on the grid of int8, and the peaks [rows, 1]; once for all linears that read x."""
    source = x.output(0) if hasattr(x, "output") else x
    key = ("rows", f"{source.get_node().get_friendly_name()}.{source.get_index()}")
    if key not in graph.memo:
        last = graph.const([-1], np.int64)
        peak = ops.maximum(ops.reduce_max(ops.abs(x), last, True), graph.const(TINY, np.float32))
        low, high = (graph.const(bound, np.float32) for bound in (-(LEVELS + 1) / LEVELS, 1.0))
        graph.memo[key] = ops.fake_quantize(ops.divide(x, peak), low, high, low, high, 2 * (LEVELS + 1)), peak
    rows, peak = graph.memo[key]
    return rows, peak


@dataclass(frozen=True)
class HeadWriter:
    """Writes a head with `linear`, whose matrix may be the embedding's."""

    graph: OpenVinoGraph
    linear: LinearWriter

    def __call__(self, hidden: Value, head: Head, vocab_size: int) -> None:
        """next_ids [rows, 1] and logits [rows, padded vocabulary] of `hidden` [rows, width].

        The logits are still to be multiplied by logit_scale [rows, 1] where that is an output; their order is right.
        """
        graph = self.graph
        apart = head.loud if self.linear.format == "int8" else ()
        quiet = ops.multiply(hidden, self._mask(apart, head)) if apart else hidden
        scores, scale = self.linear.unscaled(quiet, padded(head.linear.weight))
        if scale is not None and (apart or head.linear.bias is not None):
            scores, scale = ops.multiply(scores, scale), None
        scores = ops.add(scores, self._bias(head, vocab_size))
        if apart:
            scores = ops.add(scores, self._loud(hidden, apart, head))
        graph.output("next_ids", self._best(scores, len(self._pads(vocab_size)) + vocab_size))
        graph.output("logits", scores)
        if scale is not None:
            graph.output("logit_scale", scale)

    def _best(self, scores: Value, columns: int) -> Value:
        """[rows, 1] int64: the best of the groups' best."""
        graph = self.graph
        groups = ops.reshape(scores, graph.const([-1, columns // GROUP, GROUP], np.int64), False)
        group = self._largest(ops.reduce_max(groups, graph.const([2], np.int64), False))
        best = ops.gather(groups, group, graph.const(1, np.int64), 1)
        place = ops.reshape(self._largest(best), graph.const([-1, 1], np.int64), False)
        return ops.add(ops.multiply(group, graph.const(GROUP, np.int64)), place)

    def _largest(self, values: Value) -> Value:
        """The index of the largest of the last axis."""
        top = ops.topk(values, self.graph.const(1, np.int64), -1, "max", "none", index_element_type="i64")
        return top.output(1)

    def _bias(self, head: Head, vocab_size: int) -> Value:
        own = np.zeros(vocab_size, np.float32) if head.linear.bias is None else head.linear.bias.read()
        return self.graph.const(np.concatenate([own, self._pads(vocab_size)])[None], np.float32)

    def _pads(self, vocab_size: int) -> FloatArray:
        return np.full(-vocab_size % GROUP, NEVER, np.float32)

    def _mask(self, apart: tuple[int, ...], head: Head) -> Value:
        kept = np.ones((1, head.linear.weight.shape[1]), np.float32)
        kept[:, list(apart)] = 0
        return self.graph.const(kept, np.float32)

    def _loud(self, hidden: Value, apart: tuple[int, ...], head: Head) -> Value:
        graph = self.graph
        columns = graph.weight(padded(head.linear.weight.columns(apart)).read(), "loud")
        loud = ops.gather(hidden, graph.const(apart, np.int64), graph.const(1, np.int64))
        return ops.matmul(loud, columns, False, True)


def padded(matrix: Parameter) -> Parameter:
    """`matrix` [vocabulary, width] with rows of zeros up to whole groups; itself where it has such a size."""
    rows, width = matrix.shape
    total = rows + -rows % GROUP
    if total == rows:
        return matrix

    def take(start: int, stop: int) -> FloatArray:
        real = matrix.take(min(start, rows), min(stop, rows))
        return np.concatenate([real, np.zeros((stop - start - len(real), width), np.float32)])

    return Parameter(f"{matrix.name}[padded]", (total, width), take)
