"""Token embeddings and heads that share their table: one copy of it, quantized or not, serves both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hfx.exporter.graph.blocks import Embedding
from hfx.exporter.graph.formats import WeightFormat
from hfx.exporter.graph.linear import block_wise_product, int4_table, int8_table, row_wise_product
from hfx.exporter.graph.writer import CONTRIB, GraphWriter, Value


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
