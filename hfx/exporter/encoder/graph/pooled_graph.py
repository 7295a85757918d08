"""Make the end of a net's graph: pooling, from the trace of its torch module, and sums over tokens as operators.

The graph must still have padded tensors (see ragged.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hfx.exporter.quiet import quiet_libraries
from hfx.names import LABEL_VECTORS

if TYPE_CHECKING:
    import onnx
    import torch

PREFIX = "hfx.pooling."
TRACED, SOME_LABELS = (2, 11), 3  # rows and tokens of the traced example, and labels
OPSET = 18


def append_pooling(
    model: onnx.ModelProto, pooler: torch.nn.Module, hidden: str, mask: str, output: str, vectors: int = 0
) -> None:
    """Replace all outputs of `model` by `output` `[batch, width]`, pooled from `hidden` `[batch, tokens, hidden]`.

    For vectors of tokens, `output` is `[batch, tokens, width]`, with zeros at padding. If labels have `vectors` of so
    many numbers, they become an input `[batch, labels, vectors]`.

    `mask` is the name of the graph's attention mask, `[batch, tokens]` int64. The nodes of the model itself see 1 where
    the mask is 2, and 0 where it is -1.
    """
    import onnx
    import torch
    from onnx import TensorProto, helper

    from hfx.exporter.encoder.graph.ragged import assign, rename
    from hfx.exporter.graph.operators import DOMAIN, define

    (value,) = (value for value in model.graph.output if value.name == hidden)
    states = torch.ones(*TRACED, value.type.tensor_type.shape.dim[-1].dim_value)
    example: tuple[torch.Tensor, ...] = states, torch.ones(TRACED, dtype=torch.int64)
    names = {"hidden": hidden, "mask": mask, "pooled": output}
    dynamic = {"hidden": {0: "rows", 1: "tokens"}, "mask": {0: "rows", 1: "tokens"}}
    if vectors:
        example = *example, torch.ones(TRACED[0], SOME_LABELS, vectors)
        names[LABEL_VECTORS] = LABEL_VECTORS
        dynamic[LABEL_VECTORS] = {0: "rows", 1: "labels"}
        of_labels: list[str | int] = ["rows", "labels", vectors]
        model.graph.input.append(helper.make_tensor_value_info(LABEL_VECTORS, TensorProto.FLOAT, of_labels))
    with torch.no_grad(), quiet_libraries(), tempfile.TemporaryDirectory(prefix="hfx-export-") as folder:
        file = Path(folder) / "pooling.onnx"
        pooled = pooler(*example)
        axes = getattr(pooler, "axes", None) or dict(enumerate(("rows", "tokens")[: pooled.dim() - 1]))
        torch.onnx.export(
            getattr(pooler, "folded", lambda: pooler)(),
            example,
            str(file),
            input_names=[*dynamic],
            output_names=["pooled"],
            dynamic_axes=dynamic | {"pooled": axes},
            opset_version=OPSET,
            custom_opsets={DOMAIN: 1},
            dynamo=False,
        )
        traced = onnx.compose.add_prefix(onnx.load(file), PREFIX)
    if pooler.has_masks:
        shown, bounds = PREFIX + "shown", {PREFIX + "least": 0, PREFIX + "most": 1}
        rename(model.graph.node, mask, shown)
        model.graph.node.insert(0, helper.make_node("Clip", [mask, *bounds], [shown], name=shown))
        constants = [helper.make_tensor(name, TensorProto.INT64, [], [bound]) for name, bound in bounds.items()]
        model.graph.initializer.extend(constants)
    for name, outer in names.items():
        rename(traced.graph.node, PREFIX + name, outer)
    model.graph.node.extend(traced.graph.node)
    model.graph.initializer.extend(traced.graph.initializer)
    shape = [axes.get(axis, size) for axis, size in enumerate(pooled.shape)]
    assign(model.graph.output, [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)])
    define(model)


def sum_by_operators(model: onnx.ModelProto, mask: str) -> None:
    """Replace the sums of hidden * `mask` over tokens, with which ModernBERT's classifiers pool, by operators.

    As in pooling.py, the sum of a row is then the same alone and in any batch.
    """
    from hfx.exporter.encoder.graph.ragged import NodeList, assign
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
    """Return whether a node sums a tensor [rows, tokens, width] over the tokens."""
    from onnx import numpy_helper

    if node.op_type != "ReduceSum" or len(node.input) < 2 or node.input[1] not in arrays:
        return False
    keeps = any(each.name == "keepdims" and each.i for each in node.attribute)
    return not keeps and numpy_helper.to_array(arrays[node.input[1]]).tolist() == [1]


def _is_column(name: str, made: Mapping[str, onnx.NodeProto], mask: str) -> bool:
    """Return whether the tensor `name` is `mask` [rows, tokens] reshaped to [rows, tokens, 1], in any type."""
    axes = 0
    while name in made and made[name].op_type in ("Cast", "Unsqueeze"):
        axes += made[name].op_type == "Unsqueeze"
        name = made[name].input[0]
    return name == mask and axes == 1
