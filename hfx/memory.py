"""The memory that this process can take: its cgroup's limit, as seen in a container, and what the machine has left."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
M_MMAP_THRESHOLD = -3  # of mallopt(3)
MAPPED_BYTES = 1 << 20
UNBOUNDED = 1 << 60  # cgroups of version 1 report at least this many bytes if there is no limit
MEMORY_FACTS = Path("/proc/meminfo")


def memory_limit() -> int | None:
    """Return the memory limit of this process's cgroup (version 2 or 1) in bytes, or None if there is none."""
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < UNBOUNDED:
            return int(text)
    return None


def available_memory() -> int | None:
    """Return the most bytes that this process can still take without swapping, or None if nothing is known of them.

    This is the lower of what Linux estimates to be available on the machine (MemAvailable) and the cgroup's limit, of
    which other processes may use a part.
    """
    try:
        facts = MEMORY_FACTS.read_text(encoding="utf-8")
    except OSError:  # a sandbox without /proc
        facts = ""
    found = re.search(r"^MemAvailable: *(\d+) kB", facts, re.MULTILINE)
    known = [bytes_ for bytes_ in (memory_limit(), 1024 * int(found[1]) if found else None) if bytes_ is not None]
    return min(known, default=None)


def keep_little_freed_memory() -> None:
    """Make `release_freed_memory` quick, and rarely needed. To be called once, when all modules are imported.

    glibc maps large allocations one by one, so that the kernel gets them back when they are freed; but it raises the
    limit to as much as 32 MiB when the first one is freed, and then keeps what was freed. Here, the limit stays.
    """
    gc.freeze()  # 40,000 objects of modules, which each collection would read in 20 ms
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def release_freed_memory() -> None:
    """Collect garbage, and give the kernel the memory that the C library keeps of what was freed."""
    gc.collect()
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
