"""Sentence pooling: token embeddings in, one vector a row out, by sentence-transformers' Pooling and Normalize modules.

In the graph, an answer of 512 tokens leaves the net as one vector instead of 512; in torch, for the checkpoint's own
answers. The graph must still be on padded tensors (see ragged.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import onnx
    import torch

Mode = Literal["mean", "cls", "max", "mean_sqrt_len"]
TINY = 1e-9  # sentence-transformers' floor for the number of tokens
NORM_FLOOR = 1e-12  # torch.nn.functional.normalize's floor
LOWEST = -1e9  # sentence-transformers' value for padding under max pooling


@dataclass(frozen=True)
class Pooling:
    """How token embeddings become one: `mode`, and whether the result is scaled to length 1."""

    mode: Mode
    normalize: bool


def append_pooling(model: onnx.ModelProto, pooling: Pooling, hidden: str, mask: str, output: str, width: int) -> None:
    """Replace all outputs of `model` by `output` `[batch, width]`, pooled from `hidden` `[batch, tokens, width]`.

    `mask` is the name of the graph's attention mask, `[batch, tokens]` int64.
    """
    from onnx import TensorProto, helper

    from hfx.exporter.encoder.ragged import NodeList, assign
    from hfx.exporter.graph.operators import DOMAIN, define

    nodes = NodeList("hfx.pooling.")
    const, add = nodes.const, nodes.add
    tokens_axis = const("tokens_axis", [1])
    width_axis = const("width_axis", [-1])
    if pooling.mode == "cls":
        pooled = add("Gather", [hidden, const("first", 0)], "cls", axis=1)
    elif pooling.mode == "max":
        real = add("Unsqueeze", [add("Cast", [mask], "real_2d", to=TensorProto.BOOL), width_axis], "real")
        kept = add("Where", [real, hidden, const("lowest", np.float32(LOWEST))], "kept")
        pooled = add("ReduceMax", [kept, tokens_axis], "max", keepdims=0)
    else:
        # Not a ReduceSum over the tokens: ONNX Runtime adds a lone row's tokens up in another order than those of a row
        # in a batch, and the last bit of an embedding would depend on its batch.
        weights = add("Cast", [mask], "weights", to=TensorProto.FLOAT)
        total = add("TokenSum", [weights, hidden], "total", domain=DOMAIN)
        tokens = add("ReduceSum", [mask, width_axis], "tokens", keepdims=1)  # of integers, which is exact
        count = add("Cast", [tokens], "count", to=TensorProto.FLOAT)
        count = add("Max", [count, const("tiny", np.float32(TINY))], "count_floor")
        divisor = add("Sqrt", [count], "root") if pooling.mode == "mean_sqrt_len" else count
        pooled = add("Div", [total, divisor], "mean")
    if pooling.normalize:
        pooled = add("UnitNorm", [pooled], "normalized", domain=DOMAIN, epsilon=NORM_FLOOR)
    identity = helper.make_node("Identity", [pooled], [output], name=nodes.prefix + output)
    model.graph.node.extend([*nodes.nodes, identity])
    model.graph.initializer.extend(nodes.constants.values())
    assign(model.graph.output, [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", width])])
    define(model)


def sum_by_products(model: onnx.ModelProto, mask: str) -> None:
    """Write sums over the tokens of hidden * `mask`, by which classifiers of ModernBERT pool, as one operator.

    For the reason given in `append_pooling`: they are then the same alone and in any batch.
    """
    from hfx.exporter.encoder.ragged import NodeList, assign
    from hfx.exporter.graph.operators import DOMAIN, define

    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    arrays = {each.name: each for each in graph.initializer}
    nodes, added = [], NodeList("hfx.sums.")
    for node in graph.node:
        product = made.get(node.input[0]) if _sums_tokens(node, arrays) else None
        factors = list(product.input) if product is not None and product.op_type == "Mul" else []
        weights = next((name for name in factors if _is_column(name, made, mask)), None)
        others = [name for name in factors if name != weights]
        if weights is None or not others:
            nodes.append(node)
            continue
        (hidden,) = others
        before, out = len(added.nodes), node.output[0]
        row = added.add("Squeeze", [weights, added.const("last_axis", [-1])], out + ".row")
        added.add("TokenSum", [row, hidden], out, domain=DOMAIN)
        added.nodes[-1].output[0] = out
        nodes += added.nodes[before:]
    assign(graph.node, nodes)
    graph.initializer.extend(added.constants.values())
    define(model)


def _sums_tokens(node: onnx.NodeProto, arrays: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node is the sum of [rows, tokens, width] over the tokens."""
    from onnx import numpy_helper

    if node.op_type != "ReduceSum" or len(node.input) < 2 or node.input[1] not in arrays:
        return False
    keeps = any(each.name == "keepdims" and each.i for each in node.attribute)
    return not keeps and numpy_helper.to_array(arrays[node.input[1]]).tolist() == [1]


def _is_column(name: str, made: Mapping[str, onnx.NodeProto], mask: str) -> bool:
    """Whether the tensor `name` is [rows, tokens, 1] of the tensor `mask` [rows, tokens], in any type."""
    axes = 0
    while name in made and made[name].op_type in ("Cast", "Unsqueeze"):
        axes += made[name].op_type == "Unsqueeze"
        name = made[name].input[0]
    return name == mask and axes == 1


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Sentence embeddings `[rows, width]` of token embeddings `[rows, tokens, width]`."""
    import torch

    weights = mask.unsqueeze(-1).float()
    if pooling.mode == "cls":
        pooled = hidden[:, 0]
    elif pooling.mode == "max":
        pooled = hidden.masked_fill(weights == 0, LOWEST).max(dim=1).values
    else:
        count = weights.sum(dim=1).clamp(min=TINY)
        pooled = (hidden * weights).sum(dim=1) / (count.sqrt() if pooling.mode == "mean_sqrt_len" else count)
    return torch.nn.functional.normalize(pooled, dim=-1, eps=NORM_FLOOR) if pooling.normalize else pooled
