"""Keys and values of one kind of attention in blocks, for all layers: the memory that a paged graph reads and writes.

Owns these arrays; which row has which block is in block tables. Whatever element type the graph wants, it gets: packed
bytes are copied, never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .block_tables import BLOCK, BlockPool
from .memory import Reserved
from .openvino_model import Port

KEY_AND_VALUE = ("key", "value")


class PagedCache:
    """`blocks` blocks for the inputs PREFIX{key,value}_cache.LAYER among `ports`, real where they were written only."""

    def __init__(self, ports: Mapping[str, Port], prefix: str, layers: int, blocks: int) -> None:
        names = [f"{prefix}{part}_cache.{layer}" for layer in range(layers) for part in KEY_AND_VALUE]
        self.prefix = prefix
        self.pool = BlockPool(blocks)
        self._memory = {name: Reserved((blocks, *ports[name].shape[1:]), ports[name].dtype) for name in names}
        # Keys of layer i are part 2 * i, values 2 * i + 1.
        self.parts = [memory.array for memory in self._memory.values()]
        self._is_packed = self.parts[0].dtype == np.uint8

    def inputs(self) -> dict[str, NDArray[Any]]:
        """The arrays as inputs of the graph."""
        return {name: memory.array for name, memory in self._memory.items()}

    def copy(self, blocks: Sequence[tuple[int, int]], length: int) -> None:
        """The first `length` positions, at least, of blocks, as (source, target)."""
        # One block of a part a time: the memory of two is visibly apart, so that numpy makes no copy in between.
        for part in self.parts:
            filled = part.shape[2] if self._is_packed else length
            for source, target in blocks:
                part[target, :, :filled] = part[source, :, :filled]

    def put(self, part: int, blocks: NDArray[np.int32], values: NDArray[Any]) -> None:
        """Fill blocks of numbers that are not packed from `values` [heads, length, head_dim]."""
        for at, block in enumerate(blocks.tolist()):
            piece = values[:, at * BLOCK : (at + 1) * BLOCK]
            self.parts[part][block, :, : piece.shape[1]] = piece

    def give_back(self) -> None:
        """Give all pages back to the operating system; they read as zeros."""
        for memory in self._memory.values():
            memory.give_back(0, memory.array.size)
