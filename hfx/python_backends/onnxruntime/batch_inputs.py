"""The tensors that Triton makes of a batch's shapes: batch_input of a configuration, all six kinds.

Semantics of model_config.proto and of NVIDIA's C++ backend: the element counts are by request, the item shapes by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import DTYPES, ConfigError

Sources = Sequence[NDArray[Any]]


def _counts(sources: Sources, batched: bool) -> NDArray[Any]:
    return np.array([source.size for source in sources])


def _accumulated(sources: Sources, batched: bool) -> NDArray[Any]:
    return np.cumsum(_counts(sources, batched))


def _accumulated_with_zero(sources: Sources, batched: bool) -> NDArray[Any]:
    return np.concatenate([[0], _accumulated(sources, batched)])


def _max_as_shape(sources: Sources, batched: bool) -> NDArray[Any]:
    # Only the shape means something; the proto leaves the data open.
    return np.zeros(max(source.size for source in sources))


def _item_shape(sources: Sources, batched: bool) -> NDArray[Any]:
    if not batched:
        return np.array([source.shape for source in sources])
    return np.array([source.shape[1:] for source in sources for _ in range(len(source))])


def _item_shape_flat(sources: Sources, batched: bool) -> NDArray[Any]:
    return _item_shape(sources, batched).reshape(-1)


KINDS: dict[str, Callable[[Sources, bool], NDArray[Any]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": _accumulated,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _accumulated_with_zero,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _max_as_shape,
    "BATCH_ITEM_SHAPE": _item_shape,
    "BATCH_ITEM_SHAPE_FLATTEN": _item_shape_flat,
}

# Kinds that have the same meaning for a part of a request's rows.
PER_ROW = {"BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN"}


@dataclass(frozen=True)
class BatchInput:
    """One batch_input entry: what `kind` makes of the input `source`, given to the graph as each of `targets`."""

    kind: str
    targets: tuple[str, ...]
    dtype: Any
    source: str

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> BatchInput:
        """An entry of the configuration. Raises ConfigError."""
        kind, sources, data_type = entry.get("kind", "BATCH_ELEMENT_COUNT"), entry["source_input"], entry["data_type"]
        if kind not in KINDS:
            raise ConfigError(f"batch_input kind {kind} is unknown; {', '.join(KINDS)} can be used")
        if len(sources) != 1:
            raise ConfigError(f"batch_input {kind} has {len(sources)} source inputs, not one")
        if data_type not in ("TYPE_INT32", "TYPE_FP32"):
            raise ConfigError(f"batch_input {kind} has the type {data_type}; TYPE_INT32 and TYPE_FP32 can be used")
        return cls(kind, tuple(entry["target_name"]), DTYPES[data_type], sources[0])

    def make(self, sources: Sources, batched: bool) -> NDArray[Any]:
        """The tensor for the requests' arrays of `source`, in order."""
        return KINDS[self.kind](sources, batched).astype(self.dtype)
