"""The matrix products of an encoder's graph: the units of which a file has some in int8 and keeps others in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx

from hfx.errors import UsageError
from hfx.exporter.encoder.graph.attention import find_attentions
from hfx.exporter.encoder.graph.linears import FoundLinear, GraphView, find_linears


@dataclass(frozen=True)
class Product:
    """One linear, or several that become one operator or share weights; `name` is the place of the first in the model.

    Queries, keys and values of one attention are one product, and so are a gate and its factor.
    """

    name: str
    linears: tuple[FoundLinear, ...]

    @property
    def parts(self) -> tuple[FoundLinear, ...]:
        """The linears, and the factors of gates."""
        return tuple(part for linear in self.linears for part in (linear, linear.factor) if part)

    @property
    def weights(self) -> frozenset[str]:
        """The names of the weights."""
        return frozenset(part.weight for part in self.parts)


def find_products(view: GraphView) -> list[Product]:
    """Return the products of a graph that are worth quantizing, in the order of the graph."""
    linears = find_linears(view)
    joined = {
        linear.out: attention.projections
        for attention in find_attentions(view, linears)
        for linear in attention.projections
    }
    groups, seen = list[list[FoundLinear]](), set[str]()
    for linear in linears:
        if linear.out in seen:
            continue
        new = list(joined.get(linear.out, (linear,)))
        seen.update(each.out for each in new)
        shared = next((group for group in groups if _weights(group) & _weights(new)), None)
        if shared is None:
            groups.append(new)
        else:  # a layer that is applied several times
            shared += new
    products: dict[str, Product] = {}
    for group in groups:
        name = unique = _name(view, group)
        while unique in products:
            unique = f"{name}#{len(products)}"
        products[unique] = Product(unique, tuple(group))
    return [*products.values()]


def weights_of(model: onnx.ModelProto, names: Iterable[str]) -> frozenset[str]:
    """Return the names of the weights of the products `names`. Raises UsageError if the graph has no such product."""
    products = {product.name: product for product in find_products(GraphView(model))}
    if missing := [name for name in names if name not in products]:
        raise UsageError(
            f"The graph has no product {missing[0]}, which the export before kept in fp32.",
            "Search again: leave --again out, and type the options with --force.",
        )
    return frozenset(weight for name in names for weight in products[name].weights)


def _weights(linears: Iterable[FoundLinear]) -> set[str]:
    return {part.weight for linear in linears for part in (linear, linear.factor) if part}


def _name(view: GraphView, group: Sequence[FoundLinear]) -> str:
    """Return the place of the linears that share an operator, such as `encoder.layer.0.attention.self.query+key`."""
    first = [linear for linear in group if linear.x == group[0].x]
    parts = {part.weight: part for linear in first for part in (linear, linear.factor) if part}
    paths = [path_of(view, part).split(".") for part in parts.values()]
    common = 0
    while all(len(path) > common + 1 and path[: common + 1] == paths[0][: common + 1] for path in paths):
        common += 1
    return ".".join((*paths[0][:common], "+".join(".".join(path[common:]) for path in paths)))


def path_of(view: GraphView, linear: FoundLinear) -> str:
    """Return the path of a product's module in the model, as a tracer writes it, or else the name of its weight.

    A tracer names a node `/model/encoder/layer.0/output/dense/MatMul`.
    """
    scopes = view.nodes[linear.nodes[0]].name.split("/")[1:-1]
    modules = ".".join(scopes[1:] if scopes[:1] == ["model"] and len(scopes) > 1 else scopes)
    return modules or linear.weight.removesuffix(".weight")
