"""The keys and values of encoded sources: one copy a unit, shared by its beams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray

from .kv_cache import CacheMaker, KvCache, bind_cache
from .memory import Bindables, Reserved
from .spec import EngineSpec

PREFIXES = ("cross_", "cross_present_")

Numbers = Union[NDArray[np.float32], NDArray[np.int8]]


@dataclass(frozen=True)
class Encoded:
    """One source: `values` [layers, length, 2 * heads * head_dim], K before V, and their scales where they are int8.

    `scales` [layers, 2 * heads * head_dim] are one a channel.
    """

    values: Numbers
    scales: Optional[NDArray[np.float32]]


class CrossCache:
    """`units` sources of at most max_source positions.

    The operator insists on appending a position at each step: it gets the last one again, whose write changes nothing.
    """

    def __init__(self, spec: EngineSpec, units: int, make_cache: CacheMaker = KvCache) -> None:
        self._heads, self._head_dim = spec.heads, spec.head_dim
        self._cache = make_cache(spec.layers, units, spec.heads, spec.max_source, spec.head_dim, spec.cross_type)
        width = spec.heads * spec.head_dim
        self._last = Reserved((2 * spec.layers, units, 1, width), np.float32).array
        self._scales = np.ones((2 * spec.layers, units, width), np.float32) if spec.cross_type == "int8" else None
        self.lengths = np.zeros(units, np.int32)
        self._total = np.zeros((), np.int32)
        self._last_positions = np.zeros(units, np.int32)

    def put(self, unit: int, encoded: Encoded) -> None:
        """Fill `unit`."""
        layers, length, _ = encoded.values.shape
        by_head = encoded.values.reshape(layers, length, 2, self._heads, self._head_dim)
        for part in range(self._cache.parts):
            source = by_head[part // 2, :, part % 2]
            self._cache.put(part, unit, source)
            self._last[part, unit, 0] = source[-1].reshape(-1)
        if self._scales is not None and encoded.scales is not None:
            self._scales[:, unit] = encoded.scales.reshape(2 * layers, -1)
        self.lengths[unit] = length
        self._last_positions[unit] = length - 1

    def move(self, source: int, target: int) -> None:
        """Make unit `target` hold what unit `source` does."""
        self._cache.copy(source, target, int(self.lengths[source]))
        self._last[:, target] = self._last[:, source]
        if self._scales is not None:
            self._scales[:, target] = self._scales[:, source]
        self.lengths[target] = self.lengths[source]
        self._last_positions[target] = self._last_positions[source]

    def empty(self, first: int, end: int) -> None:
        """Make units from `first` to `end` sources of one position."""
        self.lengths[first:end] = 1
        self._last_positions[first:end] = 0

    def bound(self, units: int) -> tuple[Bindables, Bindables]:
        """Inputs and outputs of a decoder run of the first `units` units."""
        past, present = bind_cache(self._cache, 0, units, PREFIXES)
        last = {f"cross_{'kv'[part % 2]}_last_{part // 2}": each[:units] for part, each in enumerate(self._last)}
        if self._scales is not None:
            scales = enumerate(self._scales)
            last |= {f"cross_{'kv'[part % 2]}_scale_{part // 2}": each[:units] for part, each in scales}
        lengths = {"source_seqlens_k": self._last_positions[:units], "source_total_length": self._total}
        return {**lengths, **last, **past}, present

    def prepare(self, units: int) -> None:
        """Before a run of the first `units` units."""
        self._total[...] = self.lengths[:units].max()

    def give_back(self, first: int) -> None:
        """Free the memory of units from `first` on."""
        self._cache.give_back(first)
