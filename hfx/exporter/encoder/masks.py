"""The attention masks of a traced graph, by three nodes where its own thirty say the same.

transformers makes a mask [rows, 1, width, width] of any model, also where all queries of a row see the same keys, and
traced it stays thirty small nodes: a tenth of the time of a short text.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from numpy.typing import NDArray

from hfx.exporter.encoder.linears import read_names
from hfx.exporter.encoder.ragged import PADDED, NodeList, assign
from hfx.exporter.encoder.shapes import batch_of, is_small, run_without_weights
from hfx.names import ATTENTION_MASK, INPUT_IDS

LONGEST = 2048  # tokens of a text up to which masks are compared: those of 2,048 take 17 MB
SHORT = 7
OF_SIZES = {"Shape", "Size"}  # operators that read no values


def simplify_masks(model: onnx.ModelProto, longest: int) -> None:
    """Where a mask says of each key alone whether it is seen, make it [rows, 1, 1, width] of the attention mask.

    Each is compared on random attention masks, of few tokens and of `longest`, the most that a text may have: a window
    is smaller. What depends on weights is no mask, although without weights the scores of one head are equal to it.
    Does nothing for models of longer texts than LONGEST.
    """
    graph = model.graph
    shown = PADDED + ATTENTION_MASK
    if longest > LONGEST or all(shown not in node.output for node in graph.node):
        return
    values = _masks(model, _without_weights(graph), SHORT)
    if values:
        of_long = _masks(model, values, longest)
        values = {name: value for name, value in values.items() if of_long.get(name) == value}
    if not values:
        return
    new = NodeList("hfx.mask.")
    seen = new.add("Greater", [shown, new.const("none", np.int64(0))], "seen")
    row = new.add("Unsqueeze", [seen, new.const("axes", [1, 2])], "row")
    masks = {
        name: new.add("Where", [row, new.const("zero", np.float32(0)), new.const(f"{value}", value)], f"of {value}")
        for name, value in values.items()
    }
    nodes = {node.output[0]: node for node in new.nodes}  # one for each value
    for node in graph.node:
        node.input[:] = [masks.get(name, name) for name in node.input]
    maker = next(at for at, node in enumerate(graph.node) if shown in node.output)
    assign(graph.node, [*graph.node[: maker + 1], *nodes.values(), *graph.node[maker + 1 :]])
    graph.initializer.extend(new.constants.values())


def _without_weights(graph: onnx.GraphProto) -> set[str]:
    """The results of the main graph whose values depend on no large constant; the sizes of a tensor never do."""
    weighted = {each.name for each in graph.initializer if not is_small(each)}
    results = set[str]()
    for node in graph.node:
        made = {name for name in node.output if name}
        reads_values = node.op_type not in OF_SIZES and not weighted.isdisjoint(read_names([node]))
        (weighted if reads_values else results).update(made)
    return results


def _masks(model: onnx.ModelProto, among: Collection[str], width: int) -> dict[str, np.float32]:
    """The masks of `among` that say of each key alone whether it is seen, with what they hide keys by."""
    chance = np.random.default_rng(width)
    feed = batch_of(model.graph, 3 if width == SHORT else 1, 2, width)
    for name, most in ((ATTENTION_MASK, 2), (INPUT_IDS, 4)):
        if name in feed:
            feed[name] = chance.integers(0, most, feed[name].shape).astype(feed[name].dtype)
    shown = PADDED + ATTENTION_MASK
    found = run_without_weights(model, feed, [*{shown, *among}])
    seen = found.pop(shown).astype(bool)[:, None, None, :]
    return {name: np.float32(value.min()) for name, value in found.items() if _is_mask(value, seen)}


def _is_mask(value: NDArray[np.generic], seen: NDArray[np.bool_]) -> bool:
    rows, width = seen.shape[0], seen.shape[3]
    if value.dtype != np.float32 or value.shape not in ((rows, 1, 1, width), (rows, 1, width, width)):
        return False
    return bool(value.min() < 0 and (value == np.where(seen, np.float32(0), value.min())).all())
