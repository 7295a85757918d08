"""From attention in a file's standard operators to OpenVINO's PagedAttention over blocks of keys and values.

OpenVINO reads no PagedAttention from a file, and its inputs change from version to version: so a file says
ScaledDotProductAttention on [1, tokens, width], named "self.LAYER" or "cross.LAYER", which is replaced at opening.
Owns the operator's 28 inputs (OpenVINO's paged_attention.hpp), of which thirteen are used, and the names of the inputs
that it adds to a model. Which sequence has which blocks is the runners'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ATTENTION = "ScaledDotProductAttention"
SELF, CROSS = "self", "cross"
PREFIXES = {SELF: "", CROSS: "cross_"}
# Inputs with one number a sequence; one more of the "begins"; and as many as there are blocks.
VECTORS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
LONGEST = "max_context_len"


def use_pages(model: Any, heads: int, head_dim: int) -> None:
    """Put PagedAttention with `heads` heads of K and V in the place of every named attention of an openvino.Model.

    Inputs are added: for each of PREFIXES that occurs the VECTORS [n] and LONGEST [] in int32, and for each layer
    key_cache.LAYER and value_cache.LAYER, whose shapes and types the compiled model says. Appended keys are those of
    the run's tokens; queries may have several heads for each of K and V. Raises ValueError where they have others.
    """
    inputs = _Inputs(model, heads, head_dim)
    for node in [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]:
        kind, _, layer = node.get_friendly_name().partition(".")
        if kind in PREFIXES:
            _check_width(node, heads, head_dim)
            paged = _paged(node, inputs, PREFIXES[kind], int(layer))
            _describe(paged, heads, head_dim)
            (squeezed,) = node.output(0).get_target_inputs()
            squeezed.get_node().output(0).replace(paged.output(0))
    inputs.add()


def _check_width(node: Any, heads: int, head_dim: int) -> None:
    width = node.input_value(1).get_partial_shape()[2]
    if not width.is_static or width.get_length() != heads * head_dim:
        raise ValueError(f"{node.get_friendly_name()} has keys of {width} numbers, not {heads} heads of {head_dim}")


class _Inputs:
    """The inputs that a model gets, each once."""

    def __init__(self, model: Any, heads: int, head_dim: int) -> None:
        self._model = model
        self._block = [-1, heads, -1, head_dim]
        self._made: dict[str, Any] = {}

    def vectors(self, prefix: str) -> list[Any]:
        return [self._get(prefix + name, "i32", [-1]) for name in VECTORS]

    def longest(self, prefix: str) -> Any:
        return self._get(prefix + LONGEST, "i32", [])

    def caches(self, prefix: str, layer: int) -> list[Any]:
        # The runtime replaces these types and shapes by those of its own layout.
        return [self._get(f"{prefix}{part}_cache.{layer}", "dynamic", self._block) for part in ("key", "value")]

    def add(self) -> None:
        self._model.add_parameters(list(self._made.values()))
        self._model.validate_nodes_and_infer_types()

    def _get(self, name: str, kind: str, shape: Sequence[int]) -> Any:
        from openvino import PartialShape, Type
        from openvino.op import Parameter

        if name not in self._made:
            node = Parameter(getattr(Type, kind), PartialShape(list(shape)))
            node.set_friendly_name(name)
            node.output(0).set_names({name})
            self._made[name] = node
        return self._made[name].output(0)


def _paged(node: Any, inputs: _Inputs, prefix: str, layer: int) -> Any:
    from openvino.op import _PagedAttentionExtension

    query, key, value = (node.input_value(at).get_node().input_value(0) for at in range(3))  # [tokens, width] each
    scale = node.input_value(4)
    unused = [
        _nothing(np.int32),  # windows of scores that are given out
        *(_nothing(np.int32), _nothing(np.int32), _nothing(np.float32)),  # rotated blocks
        *(_nothing(np.float32), _constant(0), _constant(0)),  # sparse attention
        _nothing(np.float32),  # sinks
        *(_constant(0), _nothing(np.int32), _nothing(np.int32), _nothing(np.int32)),  # evicted blocks
        *(_nothing(np.int32), _nothing(np.uint8), _nothing(np.int32)),  # types of tokens, trees of tokens
    ]
    given = [query, key, value, *inputs.caches(prefix, layer), *inputs.vectors(prefix), scale]
    window, slopes = _constant(0), _nothing(np.float32)
    return _PagedAttentionExtension([*given, window, slopes, inputs.longest(prefix), *unused])


def _describe(paged: Any, heads: int, head_dim: int) -> None:
    facts = {"k_head_size": head_dim, "num_k_heads": heads, "v_head_size": head_dim, "num_v_heads": heads}
    for name, number in facts.items():
        paged.get_rt_info()[name] = number


def _constant(value: int) -> Any:
    from openvino.op import Constant

    return Constant(np.array(value, np.int32)).output(0)


def _nothing(dtype: Any) -> Any:
    from openvino.op import Constant

    return Constant(np.zeros(0, dtype)).output(0)
