"""The fetched packages of a peer, put before the environment's in its own process."""

from __future__ import annotations

import sys


def use(folder: str) -> None:
    """Import from `folder` first."""
    sys.path.insert(0, folder)
    # openvino reports its use to its maker, unless this package can't be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
