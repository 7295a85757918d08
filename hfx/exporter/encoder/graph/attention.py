"""Find self-attention in a traced graph: the nodes from queries, keys and values to the joined heads.

Where queries, keys and values are linears of one tensor, these linears are part of the attention. So are rotations of
queries and keys by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from hfx.exporter.encoder.graph.linears import FoundLinear, GraphView
from hfx.exporter.encoder.graph.shapes import Shape

MOST_ADDED = 2  # tensors added to the scores: a mask, and a bias by the distance of tokens
RANK = 3  # of the output of a linear: rows, width and the numbers of each token
STEP = 16  # the size of a head must be a multiple of this
BY_HEAD, KEYS, TURNED = [0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 3, 2]


@dataclass(frozen=True)
class FoundAttention:
    """softmax(query @ key * scale + added) @ value, with `heads` heads.

    The node at position `end` makes the output, `out` [rows, width, hidden]. Query, key and value are `projections` of
    one tensor (three linears, or one linear for all three); query and key are rotated by the cosines and sines of
    `rotation`, if there are any. Without projections, `by_head` names the three tensors, [rows, heads, width, dim]
    each. `added` names a mask and perhaps a bias. In each dimension but the last, these tensors have either the size 1
    or the size of the scores.
    """

    projections: tuple[FoundLinear, ...]
    rotation: tuple[str, ...]
    by_head: tuple[str, ...]
    heads: int
    scale: float
    added: tuple[str, ...]
    out: str
    end: int


@dataclass(frozen=True)
class _Scores:
    """query @ key * scale + added; the node `product` multiplies query and key."""

    product: onnx.NodeProto
    scale: float
    added: tuple[str, ...] = ()


def find_attentions(graph: GraphView, linears: Sequence[FoundLinear]) -> list[FoundAttention]:
    """Return the attentions of the main graph."""
    by_out = {linear.out: linear for linear in linears if not linear.activation and not linear.residual}
    found = (_attention(graph, by_out, node) for node in graph.nodes if node.op_type == "Softmax")
    return [attention for attention in found if attention]


def _attention(graph: GraphView, linears: Mapping[str, FoundLinear], softmax: onnx.NodeProto) -> FoundAttention | None:
    axis = next((helper.get_attribute_value(a) for a in softmax.attribute if a.name == "axis"), -1)
    scores, mixed = _scores(graph, softmax.input[0]), _mixed(graph, softmax)
    if axis not in (-1, 3) or not scores or not mixed or not _fit(graph, scores, *mixed):
        return None
    (queries, keys), (values, out) = scores.product.input, mixed
    heads, end, by_head = int(graph.shapes[queries][1]), graph.position(out), (queries, _turned(graph, keys), values)
    found = FoundAttention((), (), (), heads, scores.scale, scores.added, out, end)
    sources = ((queries, BY_HEAD), (keys, KEYS), (values, BY_HEAD))
    rotated = [_rotated(graph, name) for name in by_head[:2]]
    rotation = rotated[0][1:] if all(rotated) and rotated[0][1:] == rotated[1][1:] else ()
    if rotation:
        sources = ((rotated[0][0], BY_HEAD), (rotated[1][0], BY_HEAD), (values, BY_HEAD))
    projections = _three_linears(graph, linears, sources) or _one_linear(graph, linears, sources)
    if projections and not (rotation and len(scores.added) > 1):
        return replace(found, projections=projections, rotation=rotation)
    return replace(found, by_head=by_head) if all(by_head) and len(scores.added) == 1 else None


def _mixed(graph: GraphView, softmax: onnx.NodeProto) -> tuple[str, str] | None:
    """Return the values that the weights of `softmax` multiply, and the tensor that joins their heads again."""
    mixed = graph.reader(softmax.output[0], "MatMul")
    by_token = mixed and graph.reader(mixed.output[0], "Transpose")
    joined = by_token and _joined(graph, by_token.output[0])
    if not mixed or not by_token or not joined or mixed.input[0] != softmax.output[0] or _perm(by_token) != BY_HEAD:
        return None
    return mixed.input[1], joined.output[0]


def _fit(graph: GraphView, scores: _Scores, values: str, out: str) -> bool:
    """Return whether all sizes are those of self-attention, with a head size that the operators support."""
    queries, keys = (graph.shapes[name] for name in scores.product.input)
    if len(queries) != len(BY_HEAD):
        return False
    rows, heads, width, dim = queries
    if not isinstance(heads, int) or not isinstance(dim, int) or dim % STEP:
        return False
    mixed = keys == (rows, heads, dim, width) and graph.shapes[values] == queries
    added = [_broadcasts(graph.shapes[name], (rows, heads, width, width)) for name in scores.added]
    return mixed and graph.shapes[out] == (rows, width, heads * dim) and bool(added) and all(added)


def _turned(graph: GraphView, keys: str) -> str:
    """Return the tensor [rows, heads, width, dim] that `keys` transposes; empty if `keys` is no such transpose."""
    node = graph.maker(keys)
    return str(node.input[0]) if node is not None and node.op_type == "Transpose" and _perm(node) == TURNED else ""


def _joined(graph: GraphView, name: str) -> onnx.NodeProto | None:
    """Return the node that joins the heads of `name`, if no other node reads the heads, except for their sizes."""
    readers = [graph.nodes[position] for position in graph.readers[name]]
    joined = next((node for node in readers if node.op_type == "Reshape" and node.input[0] == name), None)
    sizes = [node for node in readers if node != joined]
    own = name not in graph.kept and all(node.op_type == "Shape" and _serves(graph, node, joined) for node in sizes)
    return joined if own else None


def _serves(graph: GraphView, node: onnx.NodeProto, end: onnx.NodeProto | None) -> bool:
    """Return whether the outputs of `node` are used only to compute `end`."""
    made = [name for name in node.output if name]
    readers = [graph.nodes[position] for name in made for position in graph.readers[name]]
    return not graph.kept.intersection(made) and all(r == end or _serves(graph, r, end) for r in readers)


def _scores(graph: GraphView, name: str, most: int = MOST_ADDED) -> _Scores | None:
    """Return the product of queries and keys in the scores `name`, to which at most `most` tensors are added."""
    node, scale = graph.maker(name), 1.0
    if node is not None and node.op_type == "Add" and most:
        for inner, other in (node.input, reversed(node.input)):
            if found := _scores(graph, inner, most - 1):
                return replace(found, added=(*found.added, _unexpanded(graph, other)))
    if node is not None and node.op_type in ("Mul", "Div") and (factor := graph.scalar(node.input[1])) is not None:
        scale, node = factor if node.op_type == "Mul" else 1 / factor, graph.maker(node.input[0])
    return _Scores(node, scale) if node is not None and node.op_type == "MatMul" else None


def _unexpanded(graph: GraphView, name: str) -> str:
    """Return the tensor of four dimensions that `name` repeats for all rows; `name` if it repeats none."""
    node = graph.maker(name)
    repeated = node is not None and node.op_type == "Expand" and len(graph.shapes[node.input[0]]) == len(BY_HEAD)
    return str(node.input[0]) if node is not None and repeated else name


def _broadcasts(shape: Shape, whole: Shape) -> bool:
    """Return whether `shape` broadcasts to the four dimensions of `whole`, and has its size in the last dimension."""
    fits = all(size in (1, full) for size, full in zip(shape, whole, strict=False))
    return fits and len(shape) == len(whole) and shape[-1] == whole[-1]


def _rotated(graph: GraphView, name: str) -> tuple[str, ...]:
    """Return x, cosines and sines if `name` is x * cosines + rotate_half(x) * sines (see `_halves`); else nothing."""
    node = graph.maker(name)
    terms = node.input if node is not None and node.op_type == "Add" else ()
    for plain, turned in (terms, reversed(terms)) if terms else ():
        for halves, sin in _factors(graph, turned):
            x = _halves(graph, halves)
            cos = next((other for factor, other in _factors(graph, plain) if factor == x), "")
            place = (1, 1, *graph.shapes[name][2:])
            if x and cos and graph.shapes[cos] == graph.shapes[sin] == place:
                return x, cos, sin
    return ()


def _factors(graph: GraphView, name: str) -> list[tuple[str, str]]:
    """Return the two factors of a product, in both orders; nothing if `name` is no product."""
    node = graph.maker(name)
    one, other = node.input if node is not None and node.op_type == "Mul" else ("", "")
    return [(one, other), (other, one)] if one else []


def _halves(graph: GraphView, name: str) -> str:
    """Return x if `name` is the negated second half of x's last dimension, then its first half; else empty."""
    joined = graph.maker(name)
    dim = graph.shapes[name][-1] if joined is not None and joined.op_type == "Concat" else ""
    if joined is None or len(joined.input) != 2 or not isinstance(dim, int):
        return ""
    negated, low = (graph.maker(part) for part in joined.input)
    high = graph.maker(negated.input[0]) if negated is not None and negated.op_type == "Neg" else None
    if low is None or high is None or low.input[0] != high.input[0]:
        return ""
    ranges = (_range(graph, low, dim), _range(graph, high, dim))
    return str(low.input[0]) if ranges == ((0, dim // 2), (dim // 2, dim)) else ""


def _range(graph: GraphView, node: onnx.NodeProto, size: int) -> tuple[int, int] | None:
    """Return the start and end of a slice of the last of four dimensions; None for any other node."""
    given = [graph.integers.get(name) for name in node.input[1:]] if node.op_type == "Slice" else []
    if len(given) != 4 or not given[0] or not given[1] or given[2] not in ((-1,), (3,)) or given[3] != (1,):
        return None
    return given[0][0], min(given[1][0], size)


# Queries, keys and values, each with the permutation that makes it from a tensor [rows, width, heads, dim].
Sources = tuple[tuple[str, list[int]], ...]


def _three_linears(graph: GraphView, linears: Mapping[str, FoundLinear], sources: Sources) -> tuple[FoundLinear, ...]:
    """Return the three linears of one tensor whose heads are the sources, if nothing else reads them; else none."""
    splits = [_by_token(graph, *source) for source in sources]
    names = [node.input[0] for node in splits if node is not None and node.op_type == "Reshape"]
    found = tuple(linears[name] for name in names if name in linears)
    own = all(graph.reader(each.out, "Reshape") in splits and len(graph.shapes[each.out]) == RANK for each in found)
    return found if own and len(found) == len(sources) and len({each.x for each in found}) == 1 else ()


def _one_linear(graph: GraphView, linears: Mapping[str, FoundLinear], sources: Sources) -> tuple[FoundLinear, ...]:
    """Return the one linear whose output holds the heads of all sources, beside each other; else none."""
    parts = [_by_token(graph, *source) for source in sources]
    names = [part.input[0] for part in parts if part is not None and part.op_type == "Squeeze"]
    split = graph.maker(names[0]) if names else None
    if split is None or split.op_type != "Split" or list(split.output) != names:
        return ()
    rows, width, count, *_ = graph.shapes[split.input[0]]
    joined = graph.maker(split.input[0])
    linear = linears.get(joined.input[0]) if joined is not None and joined.op_type == "Reshape" else None
    beside = count == len(sources) and graph.shapes[names[0]][:3] == (rows, width, 1)
    if linear is None or not beside or len(graph.shapes[linear.out]) != RANK:
        return ()
    return (linear,) if graph.reader(linear.out, "Reshape") == joined else ()


def _by_token(graph: GraphView, name: str, perm: list[int]) -> onnx.NodeProto | None:
    """Return the node that makes the heads of each token, which `name` transposes by `perm`."""
    turned = graph.maker(name)
    found = turned is not None and turned.op_type == "Transpose" and _perm(turned) == perm
    return graph.maker(turned.input[0]) if turned is not None and found else None


def _perm(node: onnx.NodeProto) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
