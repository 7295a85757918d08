"""Linear layers in every weight format: the only place that knows how a weight is stored and multiplied.

int8 quantizes each row of the activations by its own peak, so that a row's result is the same, to the bit, in any
batch; onnxruntime's DynamicQuantizeMatMul has one scale for all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.graph.blocks import FloatArray, Linear, Parameter
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value
from hfx.exporter.quantize.generator import WeightFormat, int4_blocks, int8_columns, int8_rows

ACTIVATION_LEVELS = 127
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy level: activations in int8, by row and block


@dataclass(frozen=True)
class LinearWriter:
    """Linears of one graph in one format. `levels` is the largest int8 weight, `block` the width of an int4 block."""

    writer: GraphWriter
    format: WeightFormat
    levels: int
    block: int

    def __call__(self, x: Value, linear: Linear) -> Value:
        """`linear` of `x` [rows, inputs], its bias included."""
        bias = None if linear.bias is None else self.writer.vector(linear.bias, self.dtype)
        if self.format != "int8" or bias is None:
            return self._product(x, linear.weight, bias)
        return self.writer.node("Add", [self._product(x, linear.weight), bias])

    def product(self, x: Value, linear: Linear) -> Value:
        """`linear` of `x` [rows, inputs] without its bias, for operators that add it themselves."""
        return self._product(x, linear.weight)

    def _product(self, x: Value, weight: Parameter, bias: Value | None = None) -> Value:
        if self.format == "int8":
            return self._int8(x, weight)
        if self.format == "int4":
            values, scale = int4_table(self.writer, weight, self.block)
            return block_wise_product(self.writer, x, values, scale, weight, self.block, bias)
        return self.writer.node("Gemm", [x, self.writer.vector(weight, self.dtype), bias], transB=1)

    @property
    def dtype(self) -> FloatType:
        """The type of what goes in and comes out."""
        return np.float16 if self.format == "fp16" else np.float32

    def _int8(self, x: Value, weight: Parameter) -> Value:
        outputs, inputs = weight.shape
        name, shapes = weight.name + ".int8", ((inputs, outputs), (outputs,))
        columns = _quantized(self.writer, name, np.int8, shapes, lambda: [int8_columns(weight, self.levels)])
        return row_wise_product(self.writer, x, *columns)


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


def int4_table(writer: GraphWriter, weight: Parameter, block: int) -> tuple[Value, Value]:
    """`weight` in 4 bits, two to a byte, [rows, padded columns / 2], and the scales [rows, blocks]."""
    outputs, blocks = weight.shape[0], block_count(weight, block)
    name, shapes = f"{weight.name}.int4x{block}", ((outputs, blocks * block // 2), (outputs, blocks))
    return _quantized(writer, name, np.uint8, shapes, lambda: int4_blocks(weight, block))


def block_count(weight: Parameter, block: int) -> int:
    """Blocks in a row of `weight`."""
    return -(-weight.shape[1] // block)


def block_wise_product(
    writer: GraphWriter, x: Value, values: Value, scale: Value, weight: Parameter, block: int, bias: Value | None
) -> Value:
    """x [rows, inputs] times the transposed 4-bit `values` of `weight`, plus `bias`."""
    outputs, inputs = weight.shape
    by_block = writer.const([outputs, block_count(weight, block), block // 2], np.int64)
    return writer.node(
        "MatMulNBits",
        [x, writer.node("Reshape", [values, by_block]), scale, None, None, bias],
        CONTRIB,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=block,
        accuracy_level=INT8_ACTIVATIONS,
    )


def int8_table(writer: GraphWriter, table: Parameter, levels: int) -> tuple[Value, Value]:
    """`table` in int8, row by row, and the scales [rows]: read as an embedding and, transposed, as a head."""
    name, shapes = table.name + ".int8", (table.shape, table.shape[:1])
    return _quantized(writer, name, np.int8, shapes, lambda: (int8_rows(chunk, levels) for chunk in table.chunks()))


def row_wise_product(writer: GraphWriter, x: Value, weight: Value, scale: Value) -> Value:
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
