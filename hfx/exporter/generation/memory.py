"""Memory between the steps of an export: what one has let go must be gone when the next begins."""

from __future__ import annotations

import ctypes
import gc


def let_go() -> None:
    """Give what is no longer used back to the system; the allocator would keep it for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
