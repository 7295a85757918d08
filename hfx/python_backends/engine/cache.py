"""What runners ask of the memory that holds keys and values, wherever it is.

Owns the protocol, and the choice by provider; knows neither rows' use nor graphs.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from .bindings import Bindable


class Cache(Protocol):
    """[parts, rows, heads, capacity, head_dim]: keys of layer i are part 2 * i, values 2 * i + 1.

    Capacity is in positions. Nothing is cleared: what lies beyond a row's length is garbage and never read.
    """

    @property
    def parts(self) -> int:
        """Twice the layers."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def part(self, part: int, first: int, count: int) -> Bindable:
        """[count, heads, capacity, head_dim], contiguous: keys or values of `count` rows."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length`, at least, of row `source` to row `target`."""

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Set the first positions of a row from `values` [length, heads, head_dim], which may be strided."""

    def give_back(self, first: int) -> None:
        """Free the memory of rows from `first` on, where that can be done."""


class CacheMaker(Protocol):
    """Where caches come from: KvCache for the host, DeviceCaches for a device."""

    def __call__(self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> Cache:
        """A cache of 2 * `layers` parts."""
