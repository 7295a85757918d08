"""Converts the traced float32 graph of an encoder (BERT and its kin) to int8 and fp16.

An int8 weight has one scale for each output channel, and rows share no activation scale, so that a row's answer never
depends on its batch. ONNX Runtime runs the graph with or without hfx's native operators: each operator has an ONNX
function as its definition. onnxruntime's quantize_dynamic is not used, as it has one activation scale for a whole
*batch*.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass

from hfx.exporter.encoder.graph.attention import STEP, FoundAttention, find_attentions
from hfx.exporter.encoder.graph.build import clean, inlined
from hfx.exporter.encoder.graph.first_tokens import compute_first
from hfx.exporter.encoder.graph.linears import (
    SMALLEST_QUANTIZED_WIDTH,
    FoundLinear,
    GraphView,
    find_linears,
    find_small_linears,
    replace_nodes,
)
from hfx.exporter.encoder.graph.ragged import PADDED, REAL, NodeList, assign
from hfx.exporter.graph import operators
from hfx.exporter.graph.panels import panels_of
from hfx.exporter.options import CpuMath
from hfx.exporter.quantize.generator import ALL_LEVELS, int8_rows
from hfx.exporter.quiet import replaced
from hfx.names import ATTENTION_MASK

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
INT8, LINEAR, FLOAT_LINEAR, ATTENTION = "Int8", "Int8Linear", "FloatLinear", "SelfAttention"
BFLOAT16_LINEAR, LOW_RANK = "Bfloat16Linear", "LowRank"
READ_LAST = (LINEAR, FLOAT_LINEAR, BFLOAT16_LINEAR, LOW_RANK, INT8 + LOW_RANK)  # the starts of names
GATED = (".gate", ".value")  # the ends of the names of a gated linear's factors
# Nodes, other than attention operators, that make a token of its neighbours: they need the padding as it was traced.
OF_NEIGHBOURS = {"Softmax", "Conv", "Einsum", "DFT", "LSTM", "GRU"}


class Adapted(Protocol):
    """The products of a graph that have adapters (exporter/adapters/graph.py)."""

    def nodes(self, rows: RowWise, parts: Sequence[FoundLinear], out: str) -> list[onnx.NodeProto]:
        """Return the nodes of one linear, or of several that read one tensor; empty if none of them is adapted."""


@dataclass(frozen=True)
class Quantized:
    """A quantized graph, the number of its int8 weights, and whether its operators skip padding."""

    model: onnx.ModelProto
    weights: int
    skips_padding: bool = False


def row_wise(
    source: onnx.ModelProto,
    levels: int = ALL_LEVELS,
    kept: Collection[str] = (),
    adapted: Adapted | None = None,
    math: CpuMath = "fp32",
) -> Quantized:
    """Replace each attention, each norm, and each product with a constant weight, by an operator.

    A product's operator includes its bias, and its activation or residual. `levels` are those of its
    weights (`weight_levels` in exporter/runtime.py). The weights whose names are in `kept` stay float32, or become
    bfloat16 if that is the `math`. Products that are `adapted` have operators for their adapters, too.
    """
    model = _copy(row_source(source))
    view = GraphView(model)
    linears, small = find_linears(view), find_small_linears(view)
    attentions = find_attentions(view, linears)
    rows, made = RowWise(view, levels, frozenset(kept), adapted, math), dict[int, list[onnx.NodeProto]]()
    joined = {linear.out for attention in attentions for linear in attention.projections}
    for linear in linears:
        parts = [linear, linear.factor] if linear.factor else [linear]
        made[linear.nodes[-1]] = [] if linear.out in joined else rows.product(parts, linear.out)
    for attention in attentions:
        made[attention.end] = rows.attention(attention)
    for position, node in enumerate(model.graph.node):
        if norm := rows.norm(node, view):
            made[position] = [norm]
    for linear in small:
        made[linear.nodes[-1]] = rows.product([linear], linear.out, small=True)
    absorbed = {position for linear in [*linears, *small] for position in linear.nodes}
    old = [[] if at in absorbed else [node] for at, node in enumerate(model.graph.node)]
    nodes = [node for at, nodes in enumerate(old) for node in made.get(at, nodes)]
    model.graph.initializer.extend(rows.new.constants.values())
    replace_nodes(model.graph, nodes)
    skips_padding = _skip_padding(model.graph, view, {each.out for each in small})
    compute_first(model.graph)
    operators.define(model)
    return Quantized(model, len(rows.quantized), skips_padding)


def row_source(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph whose nodes `row_wise` replaces: `source`, or `source` without functions."""
    sizes = {each.name: each.dims for each in source.graph.initializer}
    nodes = [node for node in source.graph.node if node.op_type == operators.DISENTANGLED]
    heads_fit = all(sizes[node.input[-1]][1] % STEP == 0 for node in nodes)  # attentions that were traced as operators
    return source if heads_fit else inlined(source)


def half(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph in float16 for GPUs.

    Inputs and outputs keep their types, so that the model's tensors don't change.
    """
    from onnxruntime.transformers import float16

    typed = clean(inlined(source), ShapeInferencePass())  # which leaves out weights; the converter's own copies them
    with replaced(vars(float16), {"convert_np_to_float16": _half_values}):
        converted = float16.convert_float_to_float16(typed, keep_io_types=True, disable_shape_infer=True)
    return clean(converted)  # the converter appends its casts behind the nodes that read them


def _half_values(values: NDArray[np.float32], least: float, most: float) -> NDArray[np.float16]:
    """Return `values` in float16 as ONNX Runtime's converter does, in a quarter of its time.

    No value that is not 0 becomes 0, but at least `least`; no finite value becomes infinite, but at most `most`.
    """
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    for changed, bound in ((halves == 0) & (values != 0), least), (np.isinf(halves) & np.isfinite(values), most):
        halves[changed] = np.copysign(np.float16(bound), values[changed])
    return halves


class RowWise:
    """Makes the nodes and constants of the linears, norms and attentions of one graph in int8.

    Linears whose weights are in `kept` are made in float32 or, if they are not small, in the `math` bfloat16. Linears
    that are `adapted` are made with their adapters.
    `quantized` are the names of the weights that became int8 constants.
    """

    def __init__(
        self, view: GraphView, levels: int, kept: frozenset[str], adapted: Adapted | None, math: CpuMath
    ) -> None:
        self.view, self.weights, self.levels, self.kept, self.adapted = view, view.weights, levels, kept, adapted
        self.math, self.new, self.quantized = math, NodeList(), set[str]()

    def product(self, parts: Sequence[FoundLinear], out: str, small: bool = False) -> list[onnx.NodeProto]:
        """Return the nodes of one linear, or of several that read one tensor, in int8 or in float32.

        A `small` linear is not worth quantizing.
        """
        if self.adapted and (nodes := self.adapted.nodes(self, parts, out)):
            return nodes
        if not self._stays_float(parts, small):
            return [self.linear(parts, out)]
        if parts[0].factor:
            return self.gated(parts, out)
        return [self.float_linear(parts, out, parts[0].residual)]

    def plain(self, parts: Sequence[FoundLinear], out: str) -> onnx.NodeProto:
        """Return the node of one linear, or of several that read one tensor, without activation and residual."""
        return self.float_linear(parts, out) if self._stays_float(parts) else self.linear(parts, out)

    def _stays_float(self, parts: Sequence[FoundLinear], small: bool = False) -> bool:
        return small or not self.kept.isdisjoint(part.weight for part in parts)

    def gated(self, parts: Sequence[FoundLinear], out: str) -> list[onnx.NodeProto]:
        """Return the nodes of a gated linear as two products that are multiplied."""
        both = [self.product([replace(p, factor=None)], out + end) for p, end in zip(parts, GATED, strict=True)]
        factors = [nodes[-1].output[0] for nodes in both]
        return [*both[0], *both[1], helper.make_node("Mul", factors, [out], name=out)]

    def linear(self, parts: Sequence[FoundLinear], out: str) -> onnx.NodeProto:
        """Return the node of one linear, or of several that read one tensor.

        The outputs of several stand side by side, or are multiplied if the first is a gate.
        """
        first = parts[0]
        outputs, inputs = zip(*(self.weights[p.weight].dims[:: 1 if p.transposed else -1] for p in parts), strict=True)
        biases = [np.zeros(n, np.float32) if p.bias is None else p.bias for p, n in zip(parts, outputs, strict=True)]
        bias = self.new.const(out + ".bias", np.concatenate(biases))
        suffix = "Add" if first.residual else operators.SUFFIXES[first.activation] if first.activation else ""
        residual = [first.residual] if first.residual else []
        gated = "Gated" if first.factor else ""
        sizes = {"in_features": inputs[0], "out_features": outputs[0] if gated else sum(outputs)}
        weight = self._weight(parts, by_part=bool(gated))
        return self.node(LINEAR + gated + suffix, [first.x, *weight, bias, *residual], out, **sizes)

    def float_linear(self, parts: Sequence[FoundLinear], out: str, residual: str = "") -> onnx.NodeProto:
        """Return the node of one linear, with its `residual`, or of several, whose outputs stand side by side.

        It has float32 weights, or bfloat16 ones. A linear of few outputs is too small to be worth quantizing.
        """
        first, weights = parts[0], [numpy_helper.to_array(self.weights[part.weight]) for part in parts]
        matrices = [w if part.transposed else w.T for w, part in zip(weights, parts, strict=True)]
        biases = [
            np.zeros(len(m), np.float32) if p.bias is None else p.bias for m, p in zip(matrices, parts, strict=True)
        ]
        op, stored, weight = FLOAT_LINEAR, _stored(parts) + ".float", np.concatenate(matrices)
        if self.math == "bf16" and len(weight) >= SMALLEST_QUANTIZED_WIDTH:
            op, stored, weight = BFLOAT16_LINEAR, _stored(parts) + ".bfloat16", weight.astype(BFLOAT16)
        constants = {stored: weight, out + ".bias": np.concatenate(biases)}
        suffix = "Add" if residual else operators.SUFFIXES[first.activation] if first.activation else ""
        inputs = [first.x, *(self.new.const(name, value) for name, value in constants.items())]
        return self.node(op + suffix, [*inputs, *filter(None, [residual])], out)

    def norm(self, node: onnx.NodeProto, view: GraphView) -> onnx.NodeProto | None:
        """Return the operator that replaces a LayerNormalization of the last axis; None for other nodes."""
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        weight = view.vector(node.input[1]) if node.op_type == "LayerNormalization" else None
        if weight is None or attributes.get("axis", -1) != -1 or len(node.output) != 1:
            return None
        bias = node.input[2] if len(node.input) > 2 else self.new.const(f"zeros.{weight}", np.zeros(weight, np.float32))
        read = [node.input[0], node.input[1], bias]
        return self.node("LayerNorm", read, node.output[0], epsilon=attributes.get("epsilon", 1e-5))

    def attention(self, found: FoundAttention) -> list[onnx.NodeProto]:
        """Return the nodes of an attention: one linear for queries, keys and values, and the attention operator."""
        read = {"heads": found.heads, "scale": found.scale}
        if found.by_head:
            return [self.node(ATTENTION + "Heads", [*found.by_head, *found.added], found.out, **read)]
        form = "Rotary" if found.rotation else "Bias" if len(found.added) > 1 else ""
        qkv = found.out + ".qkv"
        node = self.node(ATTENTION + form, [qkv, *found.added, *found.rotation], found.out, **read)
        return [*self.product(found.projections, qkv), node]

    def node(self, op: str, inputs: list[str], out: str, **attributes: Any) -> onnx.NodeProto:
        """Return a node of a native operator, which has the name of its output."""
        return helper.make_node(op, inputs, [out], name=out, domain=operators.DOMAIN, **attributes)

    def _weight(self, parts: Sequence[FoundLinear], by_part: bool) -> tuple[str, str]:
        """Return the constants with the weights of `parts` in panels and with their scales; they are made once.

        With `by_part`, each part has panels of its own.
        """
        stored = _stored(parts)
        values, scale = stored + ".int8", stored + ".scale"
        self.quantized.update(part.weight for part in parts)
        if values not in self.new.constants:
            floats = [(numpy_helper.to_array(self.weights[part.weight]), part.transposed) for part in parts]
            made = [int8_rows(weight if transposed else weight.T, self.levels) for weight, transposed in floats]
            weights = [int8 for int8, _ in made]
            panels = [panels_of(each) for each in (weights if by_part else [np.concatenate(weights)])]
            self.new.const(values, np.concatenate(panels))
            self.new.const(scale, np.concatenate([scales for _, scales in made]))
        return values, scale


def _stored(parts: Sequence[FoundLinear]) -> str:
    """Return a name for the weights of `parts`: a weight may be read both plain and transposed."""
    return "+".join(part.weight + (".transposed" if part.transposed else "") for part in parts)


def _skip_padding(graph: onnx.GraphProto, view: GraphView, heads: Collection[str]) -> bool:
    """Pass the last token of each text to the operators of all tokens, and return whether that was possible.

    The outputs `heads` are so small that they are computed for padding, too. It is not possible if another kind of node
    makes a token of several tokens.
    """
    made = {name: at for at, node in enumerate(graph.node) for name in node.output}
    mask, attentions = PADDED + ATTENTION_MASK, [node for node in graph.node if node.op_type.startswith(ATTENTION)]
    if not attentions or not {mask, REAL} <= made.keys() or OF_NEIGHBOURS & {node.op_type for node in graph.node}:
        return False
    linears = [node for node in graph.node if node.op_type.startswith(READ_LAST) and node.output[0] not in heads]
    rows, width, _ = view.shapes[attentions[0].output[0]]
    of_tokens = [node for node in linears if view.shapes.get(node.input[0], ())[:-1] == (rows, width)]
    new = NodeList("hfx.padding.")
    shown = new.add("Cast", [new.add("Cast", [mask], "is_shown", to=TensorProto.BOOL)], "shown", to=TensorProto.INT32)
    real = new.add("Cast", [REAL], "real", to=TensorProto.INT32)
    # 2 for a visible token, 1 for a masked one, 0 for padding: a text with masked tokens only has a last token, too.
    rank = new.add("Add", [shown, real], "rank")
    at = new.add("ArgMax", [rank], "at", axis=1, keepdims=0, select_last_index=1)
    last = new.add("Cast", [at], "last", to=TensorProto.INT32)
    for node in (*of_tokens, *attentions):
        node.input.append(last)
    first = max(made[mask], made[REAL]) + 1
    assign(graph.node, [*graph.node[:first], *new.nodes, *graph.node[first:]])
    return True


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
