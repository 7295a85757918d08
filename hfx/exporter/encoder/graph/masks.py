"""Replace the thirty nodes that make an attention mask in a traced graph by three, where these give the same mask.

transformers makes a mask [rows, 1, width, width] for any model, even if all queries of a row see the same keys. In a
trace this takes thirty small nodes: a tenth of the time of a short text.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from numpy.typing import NDArray

from hfx.exporter.encoder.graph.linears import read_names
from hfx.exporter.encoder.graph.ragged import PADDED, NodeList, assign
from hfx.exporter.encoder.graph.shapes import batch_of, is_small, run_without_weights
from hfx.names import ATTENTION_MASK, INPUT_IDS

LONGEST = 2048  # masks are compared up to this many tokens of a text; a mask of 2,048 tokens takes 17 MB
SHORT = 7
PREFIX = "hfx.mask."
SEEN = PREFIX + "seen"  # [rows, width] bool: which tokens are attended to
KEY_MASK = PREFIX + "of "  # the name of a mask [rows, 1, 1, width] float32 begins with this
OF_SIZES = {"Shape", "Size"}  # operators that read no values


def simplify_masks(model: onnx.ModelProto, longest: int) -> None:
    """Replace each mask that hides the same keys from all queries by a mask [rows, 1, 1, width] of three nodes.

    Each tensor is compared with such a mask for random attention masks of two lengths: a few tokens, and `longest`
    tokens, the most that a text may have. The second is needed because an attention window hides nothing in texts that
    are shorter than the window. Tensors that depend on weights are left out: the weights are zeros here, so the scores
    of one head would equal the mask. Do nothing for models that read more than LONGEST tokens.
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
    new = NodeList(PREFIX)
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
    """Return the results of the main graph whose values depend on no large constant.

    The operators of OF_SIZES are exempt: they read only the sizes of a tensor, which never depend on its values.
    """
    weighted = {each.name for each in graph.initializer if not is_small(each)}
    results = set[str]()
    for node in graph.node:
        made = {name for name in node.output if name}
        reads_values = node.op_type not in OF_SIZES and not weighted.isdisjoint(read_names([node]))
        (weighted if reads_values else results).update(made)
    return results


def _masks(model: onnx.ModelProto, among: Collection[str], width: int) -> dict[str, np.float32]:
    """Return the tensors of `among` that hide the same keys from all queries, with the value that hides a key."""
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
