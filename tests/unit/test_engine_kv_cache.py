"""Memory of rows: what costs memory, and what is given back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hfx.python_backends.engine.kv_cache import KvCache
from hfx.python_backends.engine.memory import Reserved


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_that_nobody_touched_costs_nothing() -> None:
    before = resident()
    huge = Reserved((1 << 20, 1 << 14), np.float32)  # 64 GB
    huge.array[::200_000, 0] = 1
    assert resident() - before < 1 << 20


def test_memory_that_is_given_back_is_free_and_its_neighbour_is_kept() -> None:
    cache = KvCache((4, 4, 8, 1024, 64), "float32")  # 2 MB a row and layer
    cache.array[:] = 1
    full = resident()
    cache.release(1)
    assert full - resident() > 0.95 * cache.array.nbytes * 3 / 4
    assert (cache.array[:, 0] == 1).all()
    cache.array[:, 1:] = 2
    assert (cache.array[:, 0] == 1).all()
