"""Activation functions with the bias before them in the same operator where onnxruntime has one."""

from __future__ import annotations

from hfx.exporter.graph.blocks import Activation, Parameter
from hfx.exporter.graph.writer import CONTRIB, GraphWriter, Value

QUICK_GELU_ALPHA = 1.702


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
