"""Writes linear layers, embeddings and the head in each weight format.

The head computes `logits` from hidden states, and `next_ids`, the best token of each row. Its matrix may be the
embedding's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph import operators
from hfx.exporter.graph.blocks import Activation, Embedding, FloatArray, Head, Linear, Parameter
from hfx.exporter.graph.panels import Int4, Int8, integers_of
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value
from hfx.exporter.mixed_precision import FINER
from hfx.exporter.quantize.generator import WeightFormat

ACTIVATION_LEVELS = 127
QUICK_GELU_ALPHA = 1.702
WANTS_LOGITS = "wants_logits"
# The types of what products read and write; float32 in all other formats.
FLOAT_TYPES: Mapping[WeightFormat, FloatType] = {"fp16": np.float16}


def activation(writer: GraphWriter, x: Value, kind: Activation, bias: Parameter | None = None) -> Value:
    """Return the function `kind` of x plus `bias`."""
    added = None if bias is None else writer.vector(bias)
    if kind == "gelu_tanh":
        return writer.node("FastGelu", [x, added], CONTRIB)
    if kind == "gelu":
        return writer.node("BiasGelu", [x, added], CONTRIB) if added else writer.node("Gelu", [x], CONTRIB)
    if added:
        x = writer.node("Add", [x, added])
    if kind in ("relu", "tanh"):
        return writer.node(kind.capitalize(), [x])
    # x * sigmoid(alpha * x): silu is quick_gelu with alpha 1
    return writer.node("QuickGelu", [x], CONTRIB, alpha=1.0 if kind == "silu" else QUICK_GELU_ALPHA)


@dataclass(frozen=True)
class LinearWriter:
    """Writes linears of one graph in one format, or tables of embeddings, which may be the head's matrix too.

    int8 has a scale for each row of a weight, and `levels` is the largest value. int4 has a scale for each `block`
    values of a row. Linears whose names are in `kept` have the format that FINER states.
    """

    writer: GraphWriter
    format: WeightFormat
    levels: int
    block: int
    kept: Collection[str] = ()

    def __call__(self, x: Value, linear: Linear) -> Value:
        """Return `linear` of `x` [rows, inputs], its bias included."""
        if linear.name in self.kept:
            return self._finer()(x, linear)
        if self.integers:
            return self._quantized_linear("Linear", x, linear)
        bias = None if linear.bias is None else self.writer.vector(linear.bias, self.dtype)
        return self._product(x, linear.weight, bias)

    def added(self, x: Value, linear: Linear, residual: Value) -> Value:
        """Return `linear` of `x`, plus `residual` [rows, outputs]."""
        if linear.name in self.kept:
            return self._finer().added(x, linear, residual)
        if self.integers:
            return self._quantized_linear("LinearAdd", x, linear, residual)
        return self.writer.node("Add", [self(x, linear), residual])

    def activated(self, x: Value, linear: Linear, kind: Activation, gated: bool) -> Value:
        """Return `kind` of `linear` of `x`; if `gated`, `kind` of the outputs' first half, times their second half."""
        writer = self.writer
        if linear.name in self.kept:
            return self._finer().activated(x, linear, kind, gated)
        if self.integers:
            return self._quantized_linear(f"Linear{'Gated' if gated else ''}{operators.SUFFIXES[kind]}", x, linear)
        if writer.native:
            return self._native_activated(x, linear, kind, gated)
        if not gated:
            return activation(writer, self._product(x, linear.weight, None), kind, linear.bias)
        gate, value = writer.unique("gate"), writer.unique("value")
        writer.nodes("Split", [self(x, linear)], [gate, value], axis=-1, num_outputs=2)
        return writer.node("Mul", [activation(writer, gate, kind), value])

    def rows(self, ids: Value, embedding: Embedding) -> Value:
        """Return the rows [tokens, hidden] of the table for `ids` [tokens]."""
        if self.integers:
            rows = self._node("Rows", [ids, *self._weight(embedding.table)], embedding.table.shape)
        else:
            rows = self.writer.node("Gather", [self.writer.vector(embedding.table), ids])
        if embedding.scale == 1.0:
            return rows
        return self.writer.node("Mul", [rows, self.writer.const(embedding.scale, self.writer.compute)])

    def scores(self, x: Value, head: Linear) -> Value:
        """Return `head` of `x` [rows, hidden] as [rows, vocabulary]; its matrix is the table of an embedding."""
        if self.integers:
            return self(x, head)
        scores = self._product(x, head.weight, None)
        return scores if head.bias is None else self.writer.node("Add", [scores, self.writer.vector(head.bias)])

    def best(
        self, x: Value, head: Linear, wants_logits: Value, outliers: tuple[Value, Value] | None
    ) -> Sequence[Value]:
        """Return the logits [rows, vocabulary] of a head in integers, and the best token of each row [rows, 1].

        Without `wants_logits` the logits may be left out. `outliers` holds channels of the hidden states [rows, n],
        which are 0 in `x`, and their weights [vocabulary, n].
        """
        op = "HeadOutliers" if outliers else "Head"
        names = [self.writer.unique("logits"), self.writer.unique("best")]
        inputs = [x, *self._weight(head.weight), self._bias(head), wants_logits, *(outliers or ())]
        return self._nodes(op, inputs, names, head.weight.shape)

    @cached_property
    def integers(self) -> Int8 | Int4 | None:
        """How operators of hfx/native read the weights; None if the products are of floats."""
        return integers_of(self.format, self.levels, self.block)

    @property
    def dtype(self) -> FloatType:
        """The type of inputs and outputs."""
        return FLOAT_TYPES.get(self.format, np.float32)

    def _finer(self) -> LinearWriter:
        return replace(self, format=FINER[self.format], kept=())

    def _native_activated(self, x: Value, linear: Linear, kind: Activation, gated: bool) -> Value:
        """Return what `activated` does, by operators whose bits are the same on every processor."""
        if not gated:
            bias = None if linear.bias is None else self.writer.vector(linear.bias)
            return self._product(x, linear.weight, bias, operators.SUFFIXES[kind])
        middle, end = linear.weight.shape[0] // 2, linear.weight.shape[0]
        gate, value = (
            replace(linear, weight=linear.weight.rows(*part), bias=linear.bias and linear.bias.rows(*part))
            for part in ((0, middle), (middle, end))
        )
        return self.writer.node("Mul", [self._native_activated(x, gate, kind, gated=False), self(x, value)])

    def _product(self, x: Value, weight: Parameter, bias: Value | None, suffix: str = "") -> Value:
        """Return x [rows, inputs] times the transposed `weight`, plus `bias`; a native operator may have a `suffix`."""
        writer, matrix = self.writer, self.writer.vector(weight, self.dtype)
        if not writer.native:
            return writer.node("Gemm", [x, matrix, bias], transB=1)
        op = writer.defined("FloatLinear" + suffix, operators.function)
        return writer.node(op, [x, matrix, bias or writer.zeros(weight.shape[0])], operators.DOMAIN)

    def _quantized_linear(self, op: str, x: Value, linear: Linear, *more: Value) -> Value:
        halves = 2 if "Gated" in op else 1
        outputs, inputs = linear.weight.shape
        given = [x, *self._weight(linear.weight, halves), self._bias(linear), *more]
        return self._node(op, given, (outputs // halves, inputs))

    def _node(self, op: str, inputs: Sequence[Value], shape: tuple[int, ...]) -> Value:
        return self._nodes(op, inputs, [self.writer.unique(op)], shape)[0]

    def _nodes(
        self, op: str, inputs: Sequence[Value], outputs: Sequence[Value], shape: tuple[int, ...]
    ) -> Sequence[Value]:
        assert self.integers is not None
        sizes = {"in_features": shape[1], "out_features": shape[0], **self.integers.attributes}
        name = self.writer.defined(self.integers.operators + op, operators.function)
        return self.writer.nodes(name, inputs, outputs, operators.DOMAIN, **sizes)

    def _weight(self, weight: Parameter, halves: int = 1) -> tuple[Value, Value]:
        """Return `weight` in panels, and its scales; both are computed if the file doesn't have them yet."""
        assert self.integers is not None
        integers, scales = self.integers, list[FloatArray]()

        def values() -> Iterator[NDArray[Any]]:
            for numbers, scale in integers.packed(weight, halves):
                scales.append(scale)
                yield numbers

        shape, scales_shape = integers.shapes(weight, halves)
        panels = self.writer.weight(weight.name + integers.suffix, integers.dtype, shape, values)
        return panels, self.writer.weight(f"{panels}.scale", np.float32, scales_shape, lambda: scales)

    def _bias(self, linear: Linear) -> Value:
        """Return the bias, or zeros."""
        if linear.bias is not None:
            return self.writer.vector(linear.bias, np.float32)
        return self.writer.zeros(linear.weight.shape[0])


@dataclass(frozen=True)
class HeadWriter:
    """Writes a head: with `linear` if it has a matrix of its own, with `table` if it shares the embedding's."""

    writer: GraphWriter
    linear: LinearWriter
    table: LinearWriter

    def __call__(self, hidden: Value, head: Head, vocab_size: int) -> None:
        """Write the logits [picks, vocabulary] of `hidden` [picks, hidden], and the best of each, next_ids [picks, 1].

        A head in int8 or int4 has another input, wants_logits. If it is false, logits may be left out.
        """
        writer, tied = self.writer, head.embedding is not None
        product = self.table if tied else self.linear
        linear = head.linear if head.embedding is None else replace(head.linear, weight=head.embedding.table)
        if product.integers:
            loud = head.loud if product.integers.splits_outliers else ()
            logits, best = self._integers(hidden, linear, product, loud)
        else:
            scores = product.scores(hidden, linear) if tied else product(hidden, linear)
            logits = scores if writer.compute is np.float32 else writer.cast(scores, np.float32)
            best = writer.unique("best")
            # TopK is twice as fast as ArgMax
            writer.nodes("TopK", [logits, writer.const([1], np.int64)], [writer.unique("value"), best], axis=-1)
        writer.output("next_ids", np.int64, ["picks", 1], best)
        writer.output("logits", np.float32, ["picks", vocab_size], logits)

    def _integers(
        self, hidden: Value, linear: Linear, product: LinearWriter, outliers: tuple[int, ...]
    ) -> tuple[Value, Value]:
        writer = self.writer
        wants_logits = writer.input(WANTS_LOGITS, np.bool_, [])
        if not outliers:
            logits, best = product.best(hidden, linear, wants_logits, None)
            return logits, best
        kept = np.ones(linear.weight.shape[1], np.float32)
        kept[list(outliers)] = 0
        columns = writer.vector(linear.weight.columns(outliers))
        channels = writer.node("Gather", [hidden, writer.const(outliers, np.int64)], axis=1)
        others = writer.node("Mul", [hidden, writer.const(kept, np.float32)])
        logits, best = product.best(others, linear, wants_logits, (channels, columns))
        return logits, best
