"""The memory that this process can take: its cgroup's limit, as seen in a container, and what the machine has left."""

from __future__ import annotations

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


def available_memory() -> int:
    """Return the most bytes that this process can still take, without swapping.

    This is the lower of what Linux estimates to be available on the machine (MemAvailable) and the cgroup's limit, of
    which other processes may use a part.
    """
    lines = MEMORY_FACTS.read_text(encoding="utf-8").splitlines()
    available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    limit = memory_limit()
    return available if limit is None else min(available, limit)
