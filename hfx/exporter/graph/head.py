"""Hidden states to `logits`, and to `next_ids`, the best token of each row; the matrix may be the embedding's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hfx.exporter.graph.blocks import Head
from hfx.exporter.graph.linear import LinearWriter
from hfx.exporter.graph.writer import GraphWriter, Value


@dataclass(frozen=True)
class HeadWriter:
    """Writes a head that has a matrix of its own with `linear`, one that is the embedding's with `table`."""

    writer: GraphWriter
    linear: LinearWriter
    table: LinearWriter

    def __call__(self, hidden: Value, head: Head, vocab_size: int) -> None:
        """logits [rows, vocabulary] of `hidden` [rows, hidden], and the best of each row, next_ids [rows, 1]."""
        writer = self.writer
        apart = head.loud if self.linear.format == "int8" else ()
        scores = self._product(self._without(hidden, apart, head) if apart else hidden, head)
        if apart:
            scores = self._with(scores, hidden, apart, head)
        logits = scores if writer.compute is np.float32 else writer.cast(scores, np.float32)
        best = [writer.unique("best"), "next_ids"]  # TopK is twice as fast as ArgMax
        writer.nodes("TopK", [logits, writer.const([1], np.int64)], best, axis=-1)
        writer.output("next_ids", np.int64, ["rows", 1], "next_ids")
        writer.output("logits", np.float32, ["rows", vocab_size], logits)

    def _product(self, hidden: Value, head: Head) -> Value:
        if head.embedding is None:
            return self.linear(hidden, head.linear)
        scores, bias = self.table.scores(hidden, head.embedding.table), head.linear.bias
        return scores if bias is None else self.writer.node("Add", [scores, self.writer.vector(bias)])

    def _without(self, hidden: Value, apart: tuple[int, ...], head: Head) -> Value:
        kept = np.ones(head.linear.weight.shape[1], np.float32)
        kept[list(apart)] = 0
        return self.writer.node("Mul", [hidden, self.writer.const(kept, np.float32)])

    def _with(self, scores: Value, hidden: Value, apart: tuple[int, ...], head: Head) -> Value:
        columns = self.writer.vector(head.linear.weight.columns(apart))
        loud = self.writer.node("Gather", [hidden, self.writer.const(apart, np.int64)], axis=1)
        return self.writer.node("Gemm", [loud, columns, scores], transB=1)
