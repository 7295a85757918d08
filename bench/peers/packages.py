"""Packages of peers that hfx itself does not need: fetched once, and seen by the peer's own process alone.

They are put before the environment's in that process, so torch and OpenVINO are the same for all peers where a set does
not bring its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hfx.perf import cache

SEPARATOR = ":"


@dataclass(frozen=True, eq=False)
class Packages:
    """A pinned set of packages (each NAME==VERSION); `finish` changes what was installed so that it runs."""

    name: str
    pins: tuple[str, ...]
    finish: Callable[[Path], None] = lambda folder: None

    def fetch(self) -> Path:
        """Their folder, installed at the first call. Raises FetchFailed."""
        return cache.packages(self.name, self.pins, self.finish)

    def installed(self) -> Path | None:
        """Their folder, None where they were not fetched yet."""
        return cache.installed(self.name, self.pins)

    def remove(self) -> bool:
        """Remove them; whether there were any."""
        folder = self.installed()
        if folder is not None:
            cache.remove(folder)
        return folder is not None

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version."""
        return dict(pin.split("==", 1) for pin in self.pins)


# For peers that don't run with the transformers of hfx.
TRANSFORMERS_4 = Packages("transformers", ("transformers==4.57.6", "huggingface_hub==0.36.2", "tokenizers==0.22.2"))


def use(folders: str) -> None:
    """Import from `folders` (joined by SEPARATOR) first."""
    sys.path[:0] = [folder for folder in folders.split(SEPARATOR) if folder]
    # openvino reports its use to its maker, unless this package can't be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
