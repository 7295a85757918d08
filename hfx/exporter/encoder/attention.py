"""The self attention of a traced graph: nodes from three linears of one tensor to the joined heads.

What has queries that are rotated or otherwise unlike stays as it was traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from hfx.exporter.encoder.linears import FoundLinear, GraphView

STEP = 16  # what the size of a head must be a multiple of
BY_HEAD, KEYS = [0, 2, 1, 3], [0, 2, 3, 1]


@dataclass(frozen=True)
class FoundAttention:
    """softmax(query @ key * scale + mask) @ value of `heads` heads; `out` [rows, width, hidden] is made at `end`."""

    projections: tuple[FoundLinear, FoundLinear, FoundLinear]  # of queries, keys and values
    heads: int
    scale: float
    mask: str
    out: str
    end: int


def find_attentions(graph: GraphView, linears: Sequence[FoundLinear]) -> list[FoundAttention]:
    """The attentions of the main graph whose queries, keys and values are `linears` of one tensor."""
    by_out = {linear.out: linear for linear in linears if not linear.activation and not linear.residual}
    found = (_attention(graph, by_out, node) for node in graph.nodes if node.op_type == "Softmax")
    return [attention for attention in found if attention]


def _attention(graph: GraphView, linears: Mapping[str, FoundLinear], softmax: onnx.NodeProto) -> FoundAttention | None:
    axis = next((helper.get_attribute_value(a) for a in softmax.attribute if a.name == "axis"), -1)
    mixed = graph.reader(softmax.output[0], "MatMul")
    by_token = mixed and graph.reader(mixed.output[0], "Transpose")
    joined = by_token and graph.reader(by_token.output[0], "Reshape")
    scores = _scores(graph, softmax.input[0])
    if axis not in (-1, 3) or not mixed or not by_token or not joined or not scores or _perm(by_token) != BY_HEAD:
        return None
    product, scale, mask = scores
    sources = ((product.input[0], BY_HEAD), (product.input[1], KEYS), (mixed.input[1], BY_HEAD))
    parts = [_projection(graph, linears, name, perm) for name, perm in sources]
    if mixed.input[0] != softmax.output[0] or len(graph.shapes.get(mask, ())) != 4 or None in parts:
        return None
    (query, dim), *others = (part for part in parts if part)
    shape = graph.shapes[query.out]
    alike = all((p.x, size, graph.shapes[p.out]) == (query.x, dim, shape) for p, size in others)
    if not alike or graph.shapes.get(joined.output[0], ())[:2] != shape[:2]:
        return None
    projections = (query, others[0][0], others[1][0])
    end = graph.position(joined.output[0])
    return FoundAttention(projections, int(shape[-1]) // dim, scale, mask, joined.output[0], end)


def _scores(graph: GraphView, name: str) -> tuple[onnx.NodeProto, float, str] | None:
    """The product of queries and keys behind masked scores, its scale, and the mask."""
    masked = graph.maker(name)
    if masked is None or masked.op_type != "Add":
        return None
    for scaled, mask in (masked.input, reversed(masked.input)):
        scale, node = 1.0, graph.maker(scaled)
        if node is not None and node.op_type in ("Mul", "Div") and (factor := graph.scalar(node.input[1])) is not None:
            scale, node = factor if node.op_type == "Mul" else 1 / factor, graph.maker(node.input[0])
        if node is not None and node.op_type == "MatMul":
            return node, scale, mask
    return None


def _projection(
    graph: GraphView, linears: Mapping[str, FoundLinear], name: str, perm: list[int]
) -> tuple[FoundLinear, int] | None:
    """The linear whose heads are `name`, and the size of a head."""
    turned = graph.maker(name)
    split = graph.maker(turned.input[0]) if turned is not None and turned.op_type == "Transpose" else None
    if turned is None or split is None or split.op_type != "Reshape" or _perm(turned) != perm:
        return None
    linear = linears.get(split.input[0])
    if linear is None or graph.reader(linear.out, "Reshape") != split:
        return None
    whole, heads = graph.shapes.get(linear.out, ()), graph.shapes.get(split.output[0], ())
    if len(whole) != 3 or len(heads) != 4 or whole[:2] != heads[:2]:
        return None
    hidden, dim = whole[-1], heads[-1]
    fits = isinstance(hidden, int) and isinstance(dim, int) and dim % STEP == 0 and hidden % dim == 0
    return (linear, int(dim)) if fits else None


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
