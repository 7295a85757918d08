"""Computes first tokens alone behind the last attention, where a graph of operators reads no other tokens from there.

A classifier of the BERT kind reads the first token of each text. Behind the last attention every operator makes a token
of the same token, so the products of the other tokens there, an eighth of all products of six layers, are not needed. A
row's bits don't depend on the rows beside it, so the answers stay equal.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import onnx
from onnx import helper, numpy_helper

from hfx.exporter.encoder.graph.linears import read_names, replace_nodes
from hfx.exporter.graph.panels import COLUMNS

# Linears, and their inputs without a residual and the last tokens; first tokens have no padding.
LINEARS = {"Int8Linear": 4, "FloatLinear": 3, "Bfloat16Linear": 3}
WITH_RESIDUAL, ATTENTION = "Add", "SelfAttention"


def compute_first(graph: onnx.GraphProto) -> None:
    """Move each Gather of first tokens to the front of the operators that make them."""
    constants = {each.name: each for each in graph.initializer}
    for node in [each for each in graph.node if _gathers_first(each, constants)]:
        _Move(graph, node).apply()


def _gathers_first(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Return whether `node` gathers the first of tokens [rows, tokens, width]."""
    if node.op_type != "Gather" or node.input[1] not in constants:
        return False
    index = numpy_helper.to_array(constants[node.input[1]])
    return not index.ndim and not index and any(each.name == "axis" and each.i == 1 for each in node.attribute)


class _Move:
    """Moves `gather` to the front of all operators whose results are read for first tokens alone."""

    def __init__(self, graph: onnx.GraphProto, gather: onnx.NodeProto) -> None:
        self.graph, self.gather = graph, gather
        self.nodes, self.firsts = list[onnx.NodeProto](), dict[str, str]()  # firsts: of tensors that are not moved
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers = defaultdict[str, set[str]](set)  # the first output of each node that reads a tensor
        for node in graph.node:
            for name in read_names([node]):
                self.readers[name].add(node.output[0])
        for value in graph.output:
            self.readers[value.name].add("")
        self.moved = {gather.output[0]}
        for node in reversed(graph.node):
            if _tokens(node) and self._is_read_by(node.output[0], self.moved):
                self.moved.add(node.output[0])

    def apply(self) -> None:
        """Change the graph, unless no operator makes only first tokens."""
        if len(self.moved) == 1:
            return
        for node in self.graph.node:
            if node == self.gather:
                continue
            if node.output[0] in self.moved:
                for place in _tokens(node):
                    if node.input[place] not in self.moved:
                        node.input[place] = self._first(node.input[place])
                if count := _linear_inputs(node):
                    del node.input[count:]
                if node.output[0] == self.gather.input[0]:
                    node.output[0] = node.name = self.gather.output[0]
            self.nodes.append(node)
        replace_nodes(self.graph, self.nodes)

    def _is_read_by(self, name: str, nodes: set[str]) -> bool:
        return bool(self.readers[name]) and self.readers[name] <= nodes

    def _first(self, name: str) -> str:
        """Return the name of a tensor's first tokens, which are made at the first call."""
        if name not in self.firsts:
            maker = self.makers.get(name)
            joined = self._joined(maker) if maker is not None and self._is_read_by(name, self.moved) else None
            if maker is not None and joined is not None:
                self.firsts[name] = self._attention(joined, maker)
            else:
                self.firsts[name] = self._add("Gather", [name, self.gather.input[1]], f"{name}.first", axis=1)
        return self.firsts[name]

    def _joined(self, attention: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the linear that only `attention` reads, if queries can be separated from its keys and values."""
        made = self.makers.get(attention.input[0]) if attention.op_type == ATTENTION else None
        if made is None or made.op_type not in LINEARS or _attributes(made).get("out_features", 0) % (3 * COLUMNS):
            return None
        names = [*made.input[1 : LINEARS[made.op_type]], made.output[0]]
        return made if all(len(self.readers[name]) == 1 for name in names) else None

    def _attention(self, joined: onnx.NodeProto, attention: onnx.NodeProto) -> str:
        """Add an attention of the first tokens alone, and its linears: of queries, and of keys and values."""
        count = _linear_inputs(joined)
        arrays = {each.name: each for each in self.graph.initializer if each.name in joined.input[1:count]}
        x, last = joined.input[0], joined.input[count:]
        outs = list[str]()
        for end, read, more in ((".queries", self._first(x), []), (".keys_and_values", x, last)):
            constants = list[str]()
            for name in joined.input[1:count]:
                whole = numpy_helper.to_array(arrays[name])
                part = whole[: len(whole) // 3] if read != x else whole[len(whole) // 3 :]
                constants.append(name + end)
                self.graph.initializer.append(numpy_helper.from_array(part, constants[-1]))
            attributes = _attributes(joined)
            attributes |= {"out_features": len(part)} if attributes else {}  # biases are the last
            inputs, out = [read, *constants, *more], joined.output[0] + end
            outs.append(self._add(joined.op_type, inputs, out, joined.domain, **attributes))
        inputs, out = [*outs, *attention.input[1:]], f"{attention.output[0]}.first"
        return self._add(f"{ATTENTION}First", inputs, out, attention.domain, **_attributes(attention))

    def _add(self, op: str, inputs: list[str], out: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [out], name=out, domain=domain, **attributes))
        return out


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _linear_inputs(node: onnx.NodeProto) -> int:
    """Return the number of inputs of a linear, with its residual and without the last tokens; 0 for other nodes."""
    count = next((count for name, count in LINEARS.items() if node.op_type.startswith(name)), 0)
    return count + 1 if count and node.op_type.endswith(WITH_RESIDUAL) else count


def _tokens(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the places of the inputs that are tokens; none for operators that may make a token of other tokens."""
    if count := _linear_inputs(node):
        return (0, count - 1) if node.op_type.endswith(WITH_RESIDUAL) else (0,)
    return (0,) if node.op_type == "LayerNorm" else ()
