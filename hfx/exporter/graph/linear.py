"""Linear layers and embeddings of ONNX Runtime's graphs: how each weight format is stored and read.

int8 quantizes each row of the activations by its own peak, so that a row's result is the same, to the bit, in any
batch; onnxruntime's DynamicQuantizeMatMul has one scale for all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import Embedding, FloatArray, Linear, Parameter
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value
from hfx.exporter.quantize.generator import WeightFormat, int4_blocks, int8_columns, int8_rows

ACTIVATION_LEVELS = 127
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy level: activations in int8, by row and block


@dataclass(frozen=True)
class LinearWriter:
    """Linears of one graph in one format, or tables of embeddings, which may be the head's matrix too.

    int8 has a scale a row of a weight, of which `levels` is the largest; int4 a scale for `block` values of a row.
    """

    writer: GraphWriter
    format: WeightFormat
    levels: int
    block: int

    def __call__(self, x: Value, linear: Linear) -> Value:
        """`linear` of `x` [rows, inputs], its bias included."""
        bias = None if linear.bias is None else self.writer.vector(linear.bias, self.dtype)
        return self.product(x, linear.weight, bias)

    def product(self, x: Value, weight: Parameter, bias: Value | None = None) -> Value:
        """x [rows, inputs] times the transposed `weight`, plus `bias`, which some operators rather add themselves."""
        if self.format == "int8":
            y = self._int8(x, weight)
            return y if bias is None else self.writer.node("Add", [y, bias])
        if self.format == "int4":
            return self._int4(x, weight, bias)
        return self.writer.node("Gemm", [x, self.writer.vector(weight, self.dtype), bias], transB=1)

    def rows(self, ids: Value, embedding: Embedding) -> Value:
        """Rows of the table [tokens, hidden] for `ids` [tokens]."""
        if self.format == "int8":
            rows = self._int8_rows(ids, embedding.table)
        elif self.format == "int4":
            rows = self._int4_rows(ids, embedding.table)
        else:
            rows = self.writer.node("Gather", [self.writer.vector(embedding.table), ids])
        if embedding.scale == 1.0:
            return rows
        return self.writer.node("Mul", [rows, self.writer.const(embedding.scale, self.writer.compute)])

    def scores(self, x: Value, table: Parameter) -> Value:
        """x [rows, hidden] times the transposed `table` of an embedding: [rows, vocabulary]."""
        if self.format != "int8":
            return self.product(x, table)
        values, scale = self._int8_table(table)
        # Folded when a session is made: the file keeps one copy, of which only the rows of tokens are read.
        return _row_wise_product(self.writer, x, self.writer.node("Transpose", [values], perm=[1, 0]), scale)

    @property
    def dtype(self) -> FloatType:
        """The type of what goes in and comes out."""
        return np.float16 if self.format == "fp16" else np.float32

    def _int8(self, x: Value, weight: Parameter) -> Value:
        outputs, inputs = weight.shape
        name, shapes = weight.name + ".int8", ((inputs, outputs), (outputs,))
        columns = _quantized(self.writer, name, np.int8, shapes, lambda: [int8_columns(weight, self.levels)])
        return _row_wise_product(self.writer, x, *columns)

    def _int4(self, x: Value, weight: Parameter, bias: Value | None) -> Value:
        (outputs, inputs), block = weight.shape, self.block
        values, scale = self._int4_table(weight)
        by_block = self.writer.const([outputs, -(-inputs // block), block // 2], np.int64)
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": block, "accuracy_level": INT8_ACTIVATIONS}
        operands = [x, self.writer.node("Reshape", [values, by_block]), scale, None, None, bias]
        return self.writer.node("MatMulNBits", operands, CONTRIB, **sizes)

    def _int8_rows(self, ids: Value, table: Parameter) -> Value:
        values, scale = self._int8_table(table)
        rows = self.writer.cast(self.writer.node("Gather", [values, ids]), np.float32)
        scales = self.writer.node("Gather", [scale, ids])
        column = self.writer.node("Unsqueeze", [scales, self.writer.const([1], np.int64)])
        return self.writer.node("Mul", [rows, column])

    def _int4_rows(self, ids: Value, table: Parameter) -> Value:
        values, scale = self._int4_table(table)
        axes = {"gather_axis": 0, "quantize_axis": 1, "bits": 4, "block_size": self.block}
        rows = self.writer.node("GatherBlockQuantized", [values, ids, scale], CONTRIB, **axes)
        hidden = table.shape[1]
        if hidden % self.block == 0:
            return rows
        bounds = [self.writer.const([each], np.int64) for each in (0, hidden, 1)]  # start, end, axis
        return self.writer.node("Slice", [rows, *bounds])

    def _int4_table(self, weight: Parameter) -> tuple[Value, Value]:
        """`weight` in 4 bits, two to a byte, [rows, padded columns / 2], and the scales [rows, blocks]."""
        (outputs, inputs), block = weight.shape, self.block
        blocks = -(-inputs // block)
        name, shapes = f"{weight.name}.int4x{block}", ((outputs, blocks * block // 2), (outputs, blocks))
        return _quantized(self.writer, name, np.uint8, shapes, lambda: int4_blocks(weight, block))

    def _int8_table(self, table: Parameter) -> tuple[Value, Value]:
        """`table` in int8, row by row, and the scales [rows]: read as an embedding and, transposed, as a head."""
        name, shapes = table.name + ".int8", (table.shape, table.shape[:1])
        return _quantized(
            self.writer, name, np.int8, shapes, lambda: (int8_rows(chunk, self.levels) for chunk in table.chunks())
        )


def _quantized(
    writer: GraphWriter,
    name: str,
    dtype: type[np.generic],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    pieces: Callable[[], Iterable[tuple[NDArray[Any], FloatArray]]],
) -> tuple[Value, Value]:
    """A weight and its scales, of these `shapes`, made of `pieces()` of both; computed where the file has none yet."""
    scales: list[FloatArray] = []

    def values() -> Iterator[NDArray[Any]]:
        for numbers, scale in pieces():
            scales.append(scale)
            yield numbers

    weight = writer.weight(name, dtype, shapes[0], values)
    return weight, writer.weight(name + ".scale", np.float32, shapes[1], lambda: scales)


def _row_wise_product(writer: GraphWriter, x: Value, weight: Value, scale: Value) -> Value:
    """x [rows, inputs] times int8 `weight` [inputs, outputs] with a `scale` an output."""
    rows, peak = _quantized_rows(writer, x)
    step, zero = writer.const(1 / ACTIVATION_LEVELS, np.float32), writer.const(128, np.uint8)
    product = writer.node("MatMulIntegerToFloat", [rows, weight, step, scale, zero], CONTRIB)
    return writer.node("Mul", [product, peak])


def _quantized_rows(writer: GraphWriter, x: Value) -> tuple[Value, Value]:
    """Each row of x over its peak, as u8 around 128, and the peaks [rows, 1]; made once for all linears that read x."""
    key = ("quantized rows", x)
    if key not in writer.memo:
        peak = writer.node("ReduceMax", [writer.node("Abs", [x]), writer.const([-1], np.int64)], keepdims=1)
        # A row of zeros becomes 0/0, which is some u8 here; its product is multiplied by its peak, 0, again.
        shares = writer.node("Div", [x, peak])
        step, zero = writer.const(1 / ACTIVATION_LEVELS, np.float32), writer.const(128, np.uint8)
        writer.memo[key] = writer.node("QuantizeLinear", [shares, step, zero]), peak
    rows, peak = writer.memo[key]
    return rows, peak
