"""Memory of a prefix cache's blocks on the host, beside the rows of ONNX Runtime's caches."""

from __future__ import annotations

from ..checks import Ids
from ..memory import Reserved
from ..plan import Pairs
from ..prefix_cache import BLOCK
from .kv_cache import Cache, KvCache


class PrefixBlocks:
    """As many blocks of keys and values of all layers, of BLOCK positions each, as `size` bytes hold.

    Memory is real where it was written. One thread carries out one plan after the other, so that no block is written
    while it is read.
    """

    def __init__(self, cache: KvCache, size: int) -> None:
        block = cache.positions(0, 0, BLOCK)
        self.bytes = block.nbytes  # of a block
        self.count = size // self.bytes
        self.array = Reserved((self.count, *block.shape), block.dtype).array

    def load(self, blocks: Ids, cache: Cache, row: int) -> None:
        """Make `blocks` the beginning of a row."""
        assert isinstance(cache, KvCache)
        for at, block in enumerate(blocks):
            cache.positions(row, at * BLOCK, (at + 1) * BLOCK)[...] = self.array[block]

    def save(self, saves: Pairs, cache: Cache, row: int) -> None:
        """Copy blocks of a row, as (block of the row, block)."""
        assert isinstance(cache, KvCache)
        for at, block in saves:
            self.array[block] = cache.positions(row, at * BLOCK, (at + 1) * BLOCK)
