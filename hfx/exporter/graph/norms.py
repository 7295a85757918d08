"""Writes the norms of a graph: as ONNX nodes, fused with an addition, or as operators of hfx/native."""

from __future__ import annotations

import numpy as np

from hfx.exporter.graph import operators
from hfx.exporter.graph.blocks import Norm
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value


def norm(writer: GraphWriter, x: Value, block: Norm, dtype: FloatType) -> Value:
    """Return the norm `block` of x [tokens, hidden], whose type is `dtype`."""
    if writer.native:
        return _native_norm(writer, x, block)
    if block.kind == "layer":
        return writer.node(
            "LayerNormalization", [x, *_parameters(writer, block, dtype)], axis=-1, epsilon=block.epsilon
        )
    # As basic nodes, which onnxruntime fuses. Its operator for this norm is in ONNX's domain, so checkers refuse it.
    square = writer.node("Pow", [x, writer.const(2.0, dtype)])
    mean = writer.node("ReduceMean", [square, writer.const([-1], np.int64)], keepdims=1)
    root = writer.node("Sqrt", [writer.node("Add", [mean, writer.const(block.epsilon, dtype)])])
    return writer.node("Mul", [writer.node("Div", [x, root]), *_parameters(writer, block, dtype)])


def _native_norm(writer: GraphWriter, x: Value, block: Norm) -> Value:
    parameters = _parameters(writer, block, np.float32)
    if block.kind == "layer" and block.bias is None:
        parameters.append(writer.zeros(block.weight.shape[0]))
    op = writer.defined("LayerNorm" if block.kind == "layer" else "RmsNorm", operators.function)
    return writer.node(op, [x, *parameters], operators.DOMAIN, epsilon=block.epsilon)


def skip_norm(writer: GraphWriter, x: Value, residual: Value, block: Norm, dtype: FloatType) -> tuple[Value, Value]:
    """Return the norm `block` of x + residual, and the sum itself; x and residual are of the type `dtype`."""
    if writer.compute is np.float32:
        total = writer.node("Add", [x, residual])
        return norm(writer, total, block, dtype), total
    op = "SkipLayerNormalization" if block.kind == "layer" else "SkipSimplifiedLayerNormalization"
    normed, total = writer.unique("normed"), writer.unique("sum")
    inputs = [x, residual, *_parameters(writer, block, dtype)]
    writer.nodes(op, inputs, [normed, "", "", total], CONTRIB, epsilon=block.epsilon)
    return normed, total


def _parameters(writer: GraphWriter, block: Norm, dtype: FloatType) -> list[Value]:
    return [writer.vector(parameter, dtype) for parameter in (block.weight, block.bias) if parameter is not None]
