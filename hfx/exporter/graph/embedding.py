"""The table of embeddings and the head, which may be one table: then one copy, quantized or not, serves both.

The head's outputs are `logits` and `next_ids`, the best token of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hfx.exporter.graph.blocks import Embedding, Head
from hfx.exporter.graph.linear import LinearWriter, block_wise_product, int4_table, int8_table, row_wise_product
from hfx.exporter.graph.writer import CONTRIB, GraphWriter, Value
from hfx.exporter.quantize.generator import WeightFormat


@dataclass(frozen=True)
class EmbeddingWriter:
    """Embeddings of one graph in one format: int8 (a scale a row), int4 (a scale for `block` values), or float."""

    writer: GraphWriter
    format: WeightFormat
    levels: int
    block: int

    def __call__(self, ids: Value, embedding: Embedding) -> Value:
        """Rows of the table [tokens, hidden] for `ids` [tokens]."""
        if self.format == "int8":
            rows = self._int8_rows(ids, embedding)
        else:
            rows = self._int4_rows(ids, embedding) if self.format == "int4" else self._float_rows(ids, embedding)
        if embedding.scale == 1.0:
            return rows
        return self.writer.node("Mul", [rows, self.writer.const(embedding.scale, self.writer.compute)])

    def head(self, x: Value, embedding: Embedding) -> Value:
        """x [rows, hidden] times the transposed table: [rows, vocabulary]. The embedding's `scale` is not applied."""
        if self.format == "int8":
            table, scale = int8_table(self.writer, embedding.table, self.levels)
            # Folded when a session is made: the file keeps one copy, of which only the rows of tokens are read.
            return row_wise_product(self.writer, x, self.writer.node("Transpose", [table], perm=[1, 0]), scale)
        if self.format == "int4":
            values, scale = int4_table(self.writer, embedding.table, self.block)
            return block_wise_product(self.writer, x, values, scale, embedding.table, self.block, None)
        return self.writer.node("Gemm", [x, self.writer.vector(embedding.table)], transB=1)

    def _float_rows(self, ids: Value, embedding: Embedding) -> Value:
        return self.writer.node("Gather", [self.writer.vector(embedding.table), ids])

    def _int4_rows(self, ids: Value, embedding: Embedding) -> Value:
        values, scale = int4_table(self.writer, embedding.table, self.block)
        axes = {"gather_axis": 0, "quantize_axis": 1, "bits": 4, "block_size": self.block}
        rows = self.writer.node("GatherBlockQuantized", [values, ids, scale], CONTRIB, **axes)
        hidden = embedding.table.shape[1]
        if hidden % self.block == 0:
            return rows
        bounds = [self.writer.const([each], np.int64) for each in (0, hidden, 1)]  # start, end, axis
        return self.writer.node("Slice", [rows, *bounds])

    def _int8_rows(self, ids: Value, embedding: Embedding) -> Value:
        table, scale = int8_table(self.writer, embedding.table, self.levels)
        rows = self.writer.cast(self.writer.node("Gather", [table, ids]), np.float32)
        scales = self.writer.node("Gather", [scale, ids])
        return self.writer.node(
            "Mul", [rows, self.writer.node("Unsqueeze", [scales, self.writer.const([1], np.int64)])]
        )


@dataclass(frozen=True)
class HeadWriter:
    """Writes a head that has a matrix of its own with `linear`, one that shares the embedding's with `embed`."""

    writer: GraphWriter
    linear: LinearWriter
    embed: EmbeddingWriter

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
        scores, bias = self.embed.head(hidden, head.embedding), head.linear.bias
        return scores if bias is None else self.writer.node("Add", [scores, self.writer.vector(bias)])

    def _without(self, hidden: Value, apart: tuple[int, ...], head: Head) -> Value:
        kept = np.ones(head.linear.weight.shape[1], np.float32)
        kept[list(apart)] = 0
        return self.writer.node("Mul", [hidden, self.writer.const(kept, np.float32)])

    def _with(self, scores: Value, hidden: Value, apart: tuple[int, ...], head: Head) -> Value:
        columns = self.writer.vector(head.linear.weight.columns(apart))
        loud = self.writer.node("Gather", [hidden, self.writer.const(apart, np.int64)], axis=1)
        return self.writer.node("Gemm", [loud, columns, scores], transB=1)
