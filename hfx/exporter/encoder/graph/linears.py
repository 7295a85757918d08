"""Find the linears of a traced graph: products with constant weights, and the nodes after them that belong to them.

A tracer writes bias, activation and residual as separate nodes, and GELU as five or eight nodes. Activations are found
by computing the elementwise nodes on sample points, so that every way to write an activation is recognized.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy import special

from hfx.exporter.encoder.graph.ragged import assign
from hfx.exporter.encoder.graph.shapes import measure
from hfx.exporter.graph.blocks import Activation
from hfx.exporter.graph.reference import ACTIVATIONS

# A narrower weight is a head of a few labels: quantizing it would save nothing and cost the most precision.
SMALLEST_QUANTIZED_WIDTH = 16
ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Erf": special.erf,
    "Tanh": np.tanh,
    "Sigmoid": special.expit,
    "Relu": ACTIVATIONS["relu"],
}
MOST_NODES = 12  # of an activation; GELU by tanh has eight
POINTS = np.linspace(-6.0, 6.0, 49)
TOLERANCE = 1e-5  # constants are float32; the two forms of GELU differ by 5e-4


@dataclass(frozen=True)
class FoundLinear:
    """A linear: activation(x @ weight + bias), the same times `factor`, or x @ weight + bias + residual.

    `factor` is another linear of x. `weight` names an initializer, which is [outputs, inputs] if it is `transposed`.
    `bias` is None if there is none. `nodes` are positions in the graph; the last of these nodes makes `out`.
    """

    x: str
    weight: str
    transposed: bool
    out: str
    nodes: tuple[int, ...]
    bias: NDArray[np.float32] | None = None
    activation: Activation | None = None
    residual: str = ""
    factor: FoundLinear | None = None


def float_weights(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the initializers that may be weights of linears."""
    return {i.name: i for i in graph.initializer if len(i.dims) == 2 and i.data_type == TensorProto.FLOAT}


def is_transposed(node: onnx.NodeProto) -> bool:
    """Return whether a Gemm multiplies by the transposed weight."""
    return any(a.name == "transB" and a.i for a in node.attribute)


def quantizable(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> str:
    """Return the name of the weight if `node` multiplies by a weight that is worth quantizing, else empty."""
    name = _multiplied(node, weights)
    return name if name and _outputs(node, weights[name]) >= SMALLEST_QUANTIZED_WIDTH else ""


def _outputs(node: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    return int(weight.dims[0 if is_transposed(node) else 1])


def _multiplied(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> str:
    """Return the name of the weight if `node` multiplies by a weight, else empty."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return ""
    plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}  # torch writes no other Gemm
    if any(a.name in plain and helper.get_attribute_value(a) != plain[a.name] for a in node.attribute):
        return ""
    return str(node.input[1])


def read_names(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names that `nodes` read, including the names that their branches read."""
    for node in nodes:
        yield from node.input
        yield from _branch_names(node)


def replace_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Replace the graph's nodes by `nodes` in order, without nodes and constants that are no longer read."""
    read, needed = {value.name for value in graph.output}, list[onnx.NodeProto]()
    for node in reversed(nodes):
        if read.intersection(node.output):
            read.update(read_names([node]))
            needed.append(node)
    assign(graph.node, reversed(needed))
    assign(graph.initializer, (i for i in graph.initializer if i.name in read))


def _branch_names(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from read_names(attribute.g.node)


def find_linears(graph: GraphView) -> list[FoundLinear]:
    """Return the linears of the main graph that are worth quantizing; no node belongs to two of them."""
    weights, taken = graph.weights, set[int]()
    found = []
    for position, node in enumerate(graph.nodes):
        name = quantizable(node, weights)
        if name and graph.has_constant_bias(node):
            linear = graph.linear(position, node, weights[name])
            if linear.residual and linear.nodes[-1] in taken:  # the sum of two linears
                linear = replace(linear, residual="", nodes=linear.nodes[:-1], out=graph.addend(linear))
            taken.update(linear.nodes)
            found.append(linear)
    return _gated(graph, found)


def find_small_linears(graph: GraphView) -> list[FoundLinear]:
    """Return the other linears of the main graph, which are heads of a few labels: products with their biases."""
    found = []
    for position, node in enumerate(graph.nodes):
        name = _multiplied(node, graph.weights)
        if name and not quantizable(node, graph.weights) and graph.has_constant_bias(node):
            found.append(graph.product(position, node, graph.weights[name]))
    return found


def _gated(graph: GraphView, linears: Sequence[FoundLinear]) -> list[FoundLinear]:
    """Return `linears`, each gate (with an activation) joined with the linear of the same x that multiplies it."""
    by_out = {linear.out: linear for linear in linears}
    gates, factors = dict[str, FoundLinear](), set[str]()
    for linear in linears:
        product = graph.reader(linear.out, "Mul") if linear.activation else None
        other = by_out.get(next((name for name in product.input if name != linear.out), "")) if product else None
        if product is None or other is None or other.x != linear.x or graph.reader(other.out, "Mul") != product:
            continue
        outputs = {graph.outputs(each) for each in (linear, other)}
        if other.activation or other.residual or len(outputs) > 1:
            continue
        nodes = (*linear.nodes, *other.nodes, graph.position(product.output[0]))
        gates[linear.out] = replace(linear, out=product.output[0], nodes=nodes, factor=other)
        factors.add(other.out)
    return [gates.get(linear.out, linear) for linear in linears if linear.out not in factors]


class GraphView:
    """A view of a graph: which nodes make and read a tensor, and the graph's constants, shapes and indices."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = model.graph.node
        self.weights = float_weights(model.graph)
        self._makers = {name: position for position, node in enumerate(self.nodes) for name in node.output}
        self.readers: dict[str, list[int]] = defaultdict(list)
        self.kept = {value.name for value in model.graph.output}
        for position, node in enumerate(self.nodes):
            self.kept.update(_branch_names(node))
            for name in node.input:
                self.readers[name].append(position)
        self.floats = {i.name: i for i in model.graph.initializer if i.data_type == TensorProto.FLOAT}
        self.constants = {i.name for i in model.graph.initializer}
        measured = measure(model)
        self.shapes, self.integers = measured.shapes, measured.integers

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for inputs and constants."""
        return self.nodes[self._makers[name]] if name in self._makers else None

    def position(self, name: str) -> int:
        """Return the position of the node that makes a tensor."""
        return self._makers[name]

    def reader(self, name: str, op: str) -> onnx.NodeProto | None:
        """Return the only node that reads a tensor, if there is only one and it is an `op`; else None."""
        nodes = [self.nodes[position] for position in self.readers[name]]
        return nodes[0] if len(nodes) == 1 and name not in self.kept and nodes[0].op_type == op else None

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant with one element; None for any other tensor."""
        one = name in self.floats and np.prod(self.floats[name].dims) == 1
        return float(self._value(name).reshape(())) if one else None

    def has_constant_bias(self, node: onnx.NodeProto) -> bool:
        """Return whether `node` adds nothing, or a constant for each output (as the third input of a Gemm)."""
        name = node.input[2] if len(node.input) > 2 else ""
        return not name or (name in self.floats and len(self.floats[name].dims) < 2)

    def linear(self, position: int, node: onnx.NodeProto, weight: onnx.TensorProto) -> FoundLinear:
        """Return the linear whose product the node at `position` makes, with its bias, activation and residual."""
        linear = self.product(position, node, weight)
        if activated := self._activated(linear):
            return activated
        return self._with_residual(linear)

    def product(self, position: int, node: onnx.NodeProto, weight: onnx.TensorProto) -> FoundLinear:
        """Return the linear whose product the node at `position` makes, with its bias only."""
        linear = FoundLinear(node.input[0], node.input[1], is_transposed(node), node.output[0], (position,))
        return self._with_bias(linear, _outputs(node, weight))

    def vector(self, name: str) -> int | None:
        """Return the size of a constant with one dimension; None for any other tensor."""
        return int(self.floats[name].dims[0]) if name in self.floats and len(self.floats[name].dims) == 1 else None

    def outputs(self, linear: FoundLinear) -> int:
        """Return how many numbers `linear` makes for each token."""
        return int(self.weights[linear.weight].dims[0 if linear.transposed else 1])

    def addend(self, linear: FoundLinear) -> str:
        """Return the name of the output of `linear` before its residual is added."""
        return str(next(n for n in self.nodes[linear.nodes[-1]].input if n != linear.residual))

    def _with_bias(self, linear: FoundLinear, outputs: int) -> FoundLinear:
        node = self.nodes[linear.nodes[0]]
        if node.op_type == "Gemm":
            if len(node.input) < 3 or not node.input[2]:
                return linear
            return replace(linear, bias=np.broadcast_to(self._value(node.input[2]), outputs))
        position, other = self._added(linear.out)
        if position is None or other not in self.floats or [*self.floats[other].dims] != [outputs]:
            return linear
        out = self.nodes[position].output[0]
        return replace(linear, out=out, nodes=(*linear.nodes, position), bias=self._value(other))

    def _with_residual(self, linear: FoundLinear) -> FoundLinear:
        position, other = self._added(linear.out)
        shape = self.shapes.get(linear.out)
        # The shapes must be equal: a tensor that would be broadcast is added by a separate node.
        if position is None or other in self.constants or not shape or self.shapes.get(other) != shape:
            return linear
        return replace(linear, out=self.nodes[position].output[0], nodes=(*linear.nodes, position), residual=other)

    def _added(self, name: str) -> tuple[int | None, str]:
        """Return the position of the Add that alone reads `name`, and the name of the other addend."""
        node = self.reader(name, "Add")
        if node is None:
            return None, ""
        return self.position(node.output[0]), next(each for each in node.input if each != name)

    def _activated(self, linear: FoundLinear) -> FoundLinear | None:
        """Return `linear` with the activation that the nodes after it compute; None if they compute none."""
        values: dict[str, NDArray[np.float64]] = {linear.out: POINTS}
        inside: list[int] = []
        while len(inside) < MOST_NODES and not self.kept & values.keys():
            further = {reader for name in values for reader in self.readers[name]}.difference(inside)
            if not further:
                return None
            position = min(further)
            node = self.nodes[position]
            value = self._computed(node, values)
            if value is None:
                return None
            inside.append(position)
            out = node.output[0]
            closed = all(reader in inside for name in values for reader in self.readers[name])
            same = (k for k, f in ACTIVATIONS.items() if np.allclose(value, f(POINTS), rtol=0, atol=TOLERANCE))
            if closed and (kind := next(same, None)):
                return replace(linear, out=out, nodes=(*linear.nodes, *sorted(inside)), activation=kind)
            values[out] = value
        return None

    def _computed(self, node: onnx.NodeProto, values: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64] | None:
        """Return the result of an elementwise node on `values` and constants; None for any other node."""
        if node.op_type not in ELEMENTWISE:
            return None
        operands = [values.get(name, self.scalar(name)) for name in node.input]
        if any(operand is None for operand in operands):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(ELEMENTWISE[node.op_type](*operands), np.float64)

    def _value(self, name: str) -> NDArray[np.float32]:
        return numpy_helper.to_array(self.floats[name])
