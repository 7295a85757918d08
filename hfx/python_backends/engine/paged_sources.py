"""The keys and values of encoded sources in blocks: once for all beams of a unit, and for all units of a source.

Owns the blocks of a lane's units and the inputs of its runs for them; knows nothing of the encoder that made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .memory import Reserved
from .openvino_model import InferRequest
from .paged_cache import KEY_AND_VALUE, PagedCache
from .paged_rows import PagedRows

PREFIX = "cross_"


class PagedSources:
    """`units` sources of at most `length` positions, of which each has numbers `width` wide, as inputs of `request`.

    The operator insists on appending a position at each step: it gets the last one again, whose write changes nothing,
    so that units may share all of their blocks.
    """

    def __init__(self, cache: PagedCache, units: int, length: int, width: int, request: InferRequest) -> None:
        self._cache = cache
        self._request = request
        self._rows = PagedRows(cache, units, length, request)
        self._names = [
            f"{PREFIX}{part[0]}_last.{layer}" for layer in range(len(cache.parts) // 2) for part in KEY_AND_VALUE
        ]
        self._last: NDArray[np.float32] = Reserved((len(self._names), units, width), np.float32).array

    def bind(self, units: int) -> None:
        """Before the first run of `units` units after runs of another number."""
        self._rows.bind(units)
        parts = zip(self._names, self._last, strict=True)
        self._request.bind({name: last[:units] for name, last in parts})

    def prepare(self, units: int) -> None:
        """Before each run."""
        self._rows.prepare(units)

    def put(self, unit: int, values: Sequence[NDArray[Any]]) -> None:
        """Fill `unit`: [heads, length, head_dim] for each part, K of layer i at 2 * i and V at 2 * i + 1."""
        length = values[0].shape[1]
        self._rows.clear(unit)
        self._rows.tables.grow(unit, length)
        blocks = self._rows.tables.of(unit)
        for part, each in enumerate(values):
            self._cache.put(part, blocks, each)
            self._last[part, unit] = each[:, -1].reshape(-1)
        self._rows.set_past(unit, length - 1)

    def share(self, source: int, target: int) -> None:
        """Make unit `target` hold what unit `source` does."""
        self._rows.alias(source, target)
        self._last[:, target] = self._last[:, source]

    def move(self, source: int, target: int) -> None:
        """Make unit `target` hold what unit `source` does, which holds nothing then."""
        self._rows.move(source, target)
        self._last[:, target] = self._last[:, source]

    def let_go(self, first: int) -> None:
        """Units from `first` on hold nothing."""
        self._rows.let_go(first)
