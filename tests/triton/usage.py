"""What the processes of a running server use, and which of it grows: the measurement of a soak."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hfx.triton import EmbeddedServer
from hfx.triton.workspace import SHARED_MEMORY, region_prefix

SERVER = "tritonserver"
MEGABYTE = 2**20
# How much more there may be at the end than in the middle. Allocators breathe by some megabytes, and the pool of gRPC
# in tritonserver (of 300 threads) by the busiest moment so far; its memory grew by 0.1 to 0.4 KB a request.
# Connections come and go, but do not become more.
ALLOWED_SHARE = {(SERVER, "rss"): 0.12, (SERVER, "threads"): 0.03}
ALLOWED = {"rss": 4 * MEGABYTE, "fds": 2, "threads": 1, "shared memory": 2 * MEGABYTE, "regions": 0}


# One moment: (process, resource) -> how much; `shared memory` (bytes) and `regions` are those of all processes.
Usage = Mapping[tuple[str, str], int]


def usage(server: EmbeddedServer) -> Usage:
    """What each process of `server` uses now."""
    names = {server.pid: SERVER} | {pids[-1]: instance for instance, pids in server.stubs().items()}
    figures: dict[tuple[str, str], int] = {}
    for pid, name in names.items():
        folder = Path(f"/proc/{pid}")
        figures[name, "rss"] = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        figures[name, "fds"] = sum(1 for _ in (folder / "fd").iterdir())
        figures[name, "threads"] = sum(1 for _ in (folder / "task").iterdir())
    sizes = _sizes(SHARED_MEMORY.glob(region_prefix(server.log.parent) + "*"))
    figures["all", "shared memory"] = sum(sizes)
    figures["all", "regions"] = len(sizes)
    return figures


def grown(usages: Sequence[Usage]) -> dict[tuple[str, str], tuple[int, int]]:
    """What is more in the last third of `usages` than in the one before, by medians; the first third is warming up.

    A process that is not there all the time counts too: it was started anew.
    """
    third = len(usages) // 3
    middle, end = _medians(usages[third:-third]), _medians(usages[-third:])
    assert third >= 3 and middle.keys() == end.keys(), "too few moments, or a process that came or went"
    return {key: (middle[key], end[key]) for key in middle if end[key] - middle[key] > _allowance(key, middle[key])}


def _allowance(key: tuple[str, str], amount: int) -> float:
    return max(ALLOWED[key[1]], ALLOWED_SHARE.get(key, 0) * amount)


def _medians(usages: Sequence[Usage]) -> dict[tuple[str, str], int]:
    keys = sorted({key for usage in usages for key in usage})
    return {key: int(statistics.median(usage.get(key, 0) for usage in usages)) for key in keys}


def _sizes(files: Iterable[Path]) -> list[int]:
    sizes = []
    for file in files:
        with suppress(FileNotFoundError):
            sizes.append(file.stat().st_blocks * 512)
    return sizes
