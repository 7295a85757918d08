"""Memory on the host that graphs read and write in place, reserved page by page."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# mmap has no name for it before Python 3.13. It keeps a large reservation from being refused.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


def trim_heap() -> None:
    """Give freed memory back to the system: glibc's allocator would keep it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Reserved:
    """A zeroed array of `shape` in memory of its own; pages come with the first write to them."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        kind: np.dtype[Any] = np.dtype(dtype)
        size = max(math.prod(shape) * kind.itemsize, 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._pages = mmap.mmap(-1, size, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # The used part of a cache is scattered: a huge page would make its neighbours real too.
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: NDArray[Any] = np.frombuffer(self._pages, kind, math.prod(shape)).reshape(shape)

    def release(self, start: int, stop: int) -> None:
        """Free the pages that lie wholly within elements [start, stop) of the flattened array; they read as zeros."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        item = self.array.itemsize
        first = -(-start * item // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop * item // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
