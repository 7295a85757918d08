"""Norms, alone or behind a residual addition, and activation functions with the bias before them.

On the CPU the addition stays a node of its own: onnxruntime's SkipLayerNormalization took 4 to 6 times as long as Add
and LayerNormalization (8 to 512 rows of 768), the one for root-mean-square norms 1.3 to 2 times. It fuses the two by
itself only on three axes, and activations here have two. On a GPU, where each node is a launch, they are fused.
"""

from __future__ import annotations

import numpy as np

from hfx.exporter.graph.blocks import Activation, Norm, Parameter
from hfx.exporter.graph.writer import CONTRIB, FloatType, GraphWriter, Value

QUICK_GELU_ALPHA = 1.702


def norm(writer: GraphWriter, x: Value, block: Norm, dtype: FloatType) -> Value:
    """`block` of x [tokens, hidden], which is `dtype`."""
    if block.kind == "layer":
        return writer.node(
            "LayerNormalization", [x, *_parameters(writer, block, dtype)], axis=-1, epsilon=block.epsilon
        )
    # Spelled out: onnxruntime fuses it, and its own operator for it stands in ONNX's domain, where checkers refuse it.
    square = writer.node("Pow", [x, writer.const(2.0, dtype)])
    mean = writer.node("ReduceMean", [square, writer.const([-1], np.int64)], keepdims=1)
    root = writer.node("Sqrt", [writer.node("Add", [mean, writer.const(block.epsilon, dtype)])])
    return writer.node("Mul", [writer.node("Div", [x, root]), *_parameters(writer, block, dtype)])


def skip_norm(writer: GraphWriter, x: Value, residual: Value, block: Norm, dtype: FloatType) -> tuple[Value, Value]:
    """(`block` of the sum, the sum) of x + residual, which are `dtype`."""
    if dtype is np.float32 or block.kind == "rms":
        total = writer.node("Add", [x, residual])
        return norm(writer, total, block, dtype), total
    normed, total = writer.unique("normed"), writer.unique("sum")
    inputs = [x, residual, *_parameters(writer, block, dtype)]
    writer.nodes("SkipLayerNormalization", inputs, [normed, "", "", total], CONTRIB, epsilon=block.epsilon)
    return normed, total


def _parameters(writer: GraphWriter, block: Norm, dtype: FloatType) -> list[Value]:
    return [writer.vector(parameter, dtype) for parameter in (block.weight, block.bias) if parameter is not None]


def activation(writer: GraphWriter, x: Value, kind: Activation, bias: Parameter | None = None) -> Value:
    """`kind`(x + bias)."""
    added = None if bias is None else writer.vector(bias)
    if kind == "gelu_tanh":
        return writer.node("FastGelu", [x, added], CONTRIB)
    if kind == "gelu":
        return writer.node("BiasGelu", [x, added], CONTRIB) if added else writer.node("Gelu", [x], CONTRIB)
    if added:
        x = writer.node("Add", [x, added])
    if kind == "relu":
        return writer.node("Relu", [x])
    # x * sigmoid(alpha * x): silu is quick_gelu with alpha 1
    return writer.node("QuickGelu", [x], CONTRIB, alpha=1.0 if kind == "silu" else QUICK_GELU_ALPHA)
