"""Keys and values in the host's memory.

Owns the arrays that graphs read and write in place; knows neither which rows are in use nor why one follows another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .memory import Reserved


class KvCache:
    """A `Cache` whose memory is real where it was written only."""

    def __init__(self, layers: int, rows: int, heads: int, capacity: int, head_dim: int, dtype: DTypeLike) -> None:
        self._memory = Reserved((2 * layers, rows, heads, capacity, head_dim), dtype)
        self.array = self._memory.array
        self.parts, self.rows = 2 * layers, rows

    def part(self, part: int, first: int, count: int) -> NDArray[np.generic]:
        """A view of the rows."""
        return self.array[part, first : first + count]

    def copy(self, source: int, target: int, length: int) -> None:
        """Positions 0 to `length`, no more."""
        # One part a time: the memory of two rows of a part is visibly apart, so that numpy makes no copy in between.
        for part in self.array:
            part[target, :, :length] = part[source, :, :length]

    def put(self, part: int, row: int, values: NDArray[Any]) -> None:
        """Transposed, and cast, while it is copied."""
        self.array[part, row, :, : len(values)] = values.transpose(1, 0, 2)

    def give_back(self, first: int) -> None:
        """Give the rows' pages back to the operating system."""
        row = self.array[0, 0].size
        for part in range(self.parts):
            self._memory.give_back((part * self.rows + first) * row, (part + 1) * self.rows * row)
