"""The memory that this process can take: its cgroup's limit, as seen in a container, and what the machine has left."""

from __future__ import annotations

import re
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
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
