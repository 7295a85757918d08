"""The traced float32 graph of an encoder (BERT and its kin) in int8 and in fp16.

Two int8 forms, both with one scale an output channel of a weight, and neither with an activation scale that rows share:
a row's answer never depends on its batch. `weight_only` is portable ONNX that OpenVINO computes in int8 (activations
quantized by groups of a row at run time); `row_wise` is for ONNX Runtime, which would fold the portable form back to
float. onnxruntime's quantize_dynamic has one activation scale a *batch* and is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from hfx.exporter.encoder.build import clean
from hfx.exporter.encoder.nodes import NodeList
from hfx.exporter.quantize.generator import TINY, int8_rows

# Below this, a weight is a head of a few labels: quantizing it would save nothing and cost the most precision.
SMALLEST_QUANTIZED_WIDTH = 16
LEVELS = 127
CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Quantized:
    """A quantized graph and how many weights in it are int8."""

    model: onnx.ModelProto
    weights: int


def weight_only(source: onnx.ModelProto) -> Quantized:
    """`DequantizeLinear(int8 weight, scale a channel)` before each MatMul and Gemm with a constant weight."""
    model = _copy(source)
    graph = model.graph
    weights = _weights(graph)
    made: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        name = _quantizable(node, weights)
        if name:
            if name not in made:
                axis = 0 if _transposed(node) else 1
                int8, scale = _quantize(numpy_helper.to_array(weights[name]), axis)
                graph.initializer.extend(
                    [numpy_helper.from_array(int8, name + ".int8"), numpy_helper.from_array(scale, name + ".scale")]
                )
                made[name] = name + ".float"
                nodes.append(
                    helper.make_node(
                        "DequantizeLinear", [name + ".int8", name + ".scale"], [made[name]], name=made[name], axis=axis
                    )
                )
            node.input[1] = made[name]
        nodes.append(node)
    _replace(graph, nodes, set(made))
    return Quantized(model, len(made))


def row_wise(source: onnx.ModelProto, levels: int = LEVELS) -> Quantized:
    """MatMul and Gemm on a constant weight -> quantize each row of the input, MatMulIntegerToFloat, scale the rows.

    `levels` is the largest weight: 127, or 63 on processors without VNNI, whose u8 x s8 products saturate in pairs.
    """
    model = _copy(source)
    graph = model.graph
    weights = _weights(graph)
    rows = _RowWise(weights, levels)
    for node in graph.node:
        name = _quantizable(node, weights)
        if name:
            rows.replace(node, name)
        else:
            rows.new.nodes.append(node)
    graph.initializer.extend(rows.new.constants.values())
    _replace(graph, rows.new.nodes, set(rows.made))
    if all(opset.domain != CONTRIB for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return Quantized(model, len(rows.made))


def half(source: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in float16 for GPUs; inputs and outputs keep their types, so that the model's tensors don't change."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(_copy(source), keep_io_types=True)
    return clean(converted)  # the converter appends its casts behind the nodes that read them


class _RowWise:
    """Nodes of the row-wise form; an input that several weights read is quantized once."""

    def __init__(self, weights: dict[str, onnx.TensorProto], levels: int) -> None:
        self.weights, self.levels = weights, levels
        self.new = NodeList()
        self.made: set[str] = set()
        self.stored: set[str] = set()  # a weight that is read both ways is stored both ways
        self.rows: dict[str, tuple[str, str]] = {}

    def replace(self, node: onnx.NodeProto, name: str) -> None:
        """The int8 nodes of `node`, whose weight is the initializer `name`."""
        stored = name + ".transposed" if _transposed(node) else name
        if stored not in self.stored:
            weight = numpy_helper.to_array(self.weights[name])
            int8, scale = _quantize(weight.T if _transposed(node) else weight, 1, self.levels)
            self.new.const(stored + ".int8", int8)
            self.new.const(stored + ".scale", scale)
            self.stored.add(stored)
            self.made.add(name)
        u8, peak = self._quantized_rows(node.input[0])
        zero, step = self._const("u8_zero", np.uint8(128)), self._const("step", np.float32(1 / LEVELS))
        product, out = node.output[0] + ".int8", node.output[0]
        biased = len(node.input) > 2 and bool(node.input[2])
        scaled = out + ".unbiased" if biased else out
        inputs = [u8, stored + ".int8", step, stored + ".scale", zero]
        self.new.add("MatMulIntegerToFloat", inputs, product, domain=CONTRIB)
        self.new.add("Mul", [product, peak], scaled)
        if biased:
            self.new.add("Add", [scaled, node.input[2]], out)

    def _quantized_rows(self, x: str) -> tuple[str, str]:
        """u8 rows around 128, and each row's peak."""
        if x not in self.rows:
            p = x + ".row_"
            self.new.add("Abs", [x], p + "abs")
            self.new.add(
                "ReduceMax", [p + "abs", self._const("last_axis", np.array([-1], np.int64))], p + "max", keepdims=1
            )
            self.new.add("Max", [p + "max", self._const("tiny", np.float32(TINY))], p + "peak")
            self.new.add("Div", [self._const("levels", np.float32(LEVELS)), p + "peak"], p + "gain")
            self.new.add("Mul", [x, p + "gain"], p + "scaled")
            # Truncation of x + 128.5 rounds half up; 128 is the zero point.
            self.new.add("Add", [p + "scaled", self._const("middle", np.float32(128.5))], p + "shifted")
            self.new.add("Cast", [p + "shifted"], p + "u8", to=TensorProto.UINT8)
            self.rows[x] = p + "u8", p + "peak"
        return self.rows[x]

    def _const(self, name: str, value: ArrayLike) -> str:
        return self.new.const("hfx.row_wise." + name, value)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _weights(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    return {i.name: i for i in graph.initializer if len(i.dims) == 2 and i.data_type == TensorProto.FLOAT}


def _transposed(node: onnx.NodeProto) -> bool:
    return any(a.name == "transB" and a.i for a in node.attribute)


def _quantizable(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> str:
    """Name of the weight when `node` multiplies by one that is worth quantizing, else empty."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return ""
    plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}  # torch writes no other Gemm
    if any(a.name in plain and helper.get_attribute_value(a) != plain[a.name] for a in node.attribute):
        return ""
    weight = weights[node.input[1]]
    return node.input[1] if weight.dims[0 if _transposed(node) else 1] >= SMALLEST_QUANTIZED_WIDTH else ""


def _quantize(weight: NDArray[Any], axis: int, levels: int = LEVELS) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """int8 of `weight`, and the scale of each channel along `axis`."""
    values, scale = int8_rows(weight if axis == 0 else weight.T, levels)
    return values if axis == 0 else values.T, scale


def _replace(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], dropped: set[str]) -> None:
    """The new nodes, without the float weights that are no longer read."""
    del graph.node[:]
    graph.node.extend(nodes)
    read = set(_read(nodes))
    kept = [i for i in graph.initializer if i.name not in dropped or i.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Names that the nodes read, those in their branches included."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _read(attribute.g.node)
