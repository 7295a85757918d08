"""Whether the generators of a stopping server have answered every request.

Triton 2.51 does not count requests of decoupled models as in flight, and keeps such a model loaded as long as a gRPC
stream is open that has been used, also an idle one: its log can't tell a stream that runs from one that is idle.
"""

from __future__ import annotations

import re
from pathlib import Path

from hfx.python_backends.serving.ipc import open_requests, publication
from hfx.triton import process

DECOUPLED = re.compile(r"\bdecoupled\s*:\s*true\b", re.IGNORECASE)


def decoupled_models(repository: Path) -> list[str]:
    """The models in `repository` whose requests Triton does not count."""
    configs = repository.glob("*/config.pbtxt")
    return [path.parent.name for path in configs if DECOUPLED.search(path.read_text(encoding="utf-8"))]


def all_answered(repository: Path, server: int) -> bool:
    """Whether the decoupled models of `repository`, which `server` (a process id) serves, have no open request.

    False also where that can't be known: of a model that is no engine of hfx, has died, or runs twice.
    """
    pids = process.stubs(server)
    for model in decoupled_models(repository):
        running = [pid for instance in pids if instance.rsplit("_", 2)[0] == model for pid in pids[instance]]
        try:
            if len(running) != 1 or open_requests(model, server, publication(repository / model)):
                return False
        except (OSError, KeyError, ValueError):
            return False
    return True
