"""Embedded servers for one test each, and what they use: shared memory, shared nets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hfx.triton import EmbeddedServer
from hfx.triton.workspace import SHARED_MEMORY, region_prefix


@contextmanager
def started(repository: Path, **options: Any) -> Iterator[EmbeddedServer]:
    """Yield a server that is killed at the end, because a graceful stop takes seconds."""
    with EmbeddedServer(repository, **options) as server:
        try:
            yield server
        finally:
            server.kill()


def regions(workspace: Path) -> list[Path]:
    """Return the shared memory of the server with the folder `workspace`."""
    return list(SHARED_MEMORY.glob(region_prefix(workspace) + "*"))


def shared_nets(server: int) -> int:
    """Return the number of shared nets of the process `server`, each of which has a thread."""
    found = 0
    for path in Path(f"/proc/{server}/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += path.read_text().strip() == "hfx-shared-net"
    return found
