"""The peers: the same checkpoint as one would run it without hfx, each in a process of its own.

`PEERS[name].open(checkpoint, task, precision, threads)` gives an Opened, which is asked Batch by Batch; a file here is
a peer, or a shared part. What one needs is fetched by `python -m bench.peers install`, apart from the environment.
Nothing is imported before it is used: a peer's process holds its own library, and what that needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.peers.cases import Answered, Batch, PeerRun
    from bench.peers.ours import open_published
    from bench.peers.peer import Identity, Opened, Peer
    from bench.peers.runs import peer_run
    from bench.peers.table import PEERS

__all__ = [
    "PEERS",
    "Answered",
    "Batch",
    "Identity",
    "Opened",
    "Peer",
    "PeerRun",
    "open_published",
    "peer_run",
]
_FILES = {
    "cases": ("Answered", "Batch", "PeerRun"),
    "ours": ("open_published",),
    "peer": ("Identity", "Opened", "Peer"),
    "runs": ("peer_run",),
    "table": ("PEERS",),
}


def __getattr__(name: str) -> Any:
    for file, members in _FILES.items():
        if name in members:
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
