"""Norms and activation functions, in the forms that OpenVINO fuses with what stands before them."""

from __future__ import annotations

import numpy as np
from openvino import opset16 as ops

from hfx.exporter.graph.blocks import Activation, Norm
from hfx.exporter.openvino.graph import OpenVinoGraph, Value
from hfx.exporter.openvino.linear import vector

QUICK_GELU_ALPHA = 1.702


def norm(graph: OpenVinoGraph, x: Value, block: Norm) -> Value:
    """`block` of x [tokens, hidden]."""
    last = graph.const([-1], np.int64)
    if block.kind == "layer":
        y = ops.multiply(ops.mvn(x, last, True, block.epsilon, "inside_sqrt"), vector(graph, block.weight))
        return y if block.bias is None else ops.add(y, vector(graph, block.bias))
    mean = ops.reduce_mean(ops.power(x, graph.const(2.0, np.float32)), last, True)
    root = ops.sqrt(ops.add(mean, graph.const(block.epsilon, np.float32)))
    return ops.multiply(ops.multiply(x, ops.divide(graph.const(1.0, np.float32), root)), vector(graph, block.weight))


def activation(graph: OpenVinoGraph, x: Value, kind: Activation) -> Value:
    """`kind` of x."""
    if kind == "relu":
        return ops.relu(x)
    if kind == "silu":
        return ops.swish(x)
    if kind == "quick_gelu":
        return ops.swish(x, graph.const(QUICK_GELU_ALPHA, np.float32))
    return ops.gelu(x, "tanh" if kind == "gelu_tanh" else "erf")
