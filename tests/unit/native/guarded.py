"""Arrays between inaccessible pages: a read or write beyond an array is a segmentation fault."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
NOTHING_ALLOWED = 0  # PROT_NONE
LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(shape: tuple[int, ...], kind: type[np.generic], at_end: bool) -> np.ndarray:
    """Return an array that ends where an inaccessible page begins, or, if not `at_end`, begins where one ends."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    pages = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + PAGE + pages):
        if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), NOTHING_ALLOWED):
            raise OSError(ctypes.get_errno(), "mprotect")
    place = PAGE + (pages - size if at_end else 0)
    return np.frombuffer(memory, kind, size // np.dtype(kind).itemsize, place).reshape(shape)


def copy_of(array: np.ndarray, at_end: bool) -> np.ndarray:
    """`array` in guarded memory."""
    copy = guarded(array.shape, array.dtype.type, at_end)
    copy[...] = array
    return copy
