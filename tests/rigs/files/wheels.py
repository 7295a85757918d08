"""Wheels that tests vendor, fetched from the package index once and cached."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hfx.deploy.wheels import GLIBC, fetch
from tests.zoo.cache import built

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"  # the Python of the embedded server's stubs


def wheels_for(needed: Sequence[str], python: str = HERE, machine: str = platform.machine()) -> Path:
    """Return a folder with the wheels of the pinned requirements `needed` for the processor `machine`."""

    def build(folder: Path) -> dict[str, Any]:
        return {wheel.name: asdict(wheel) for wheel in fetch(needed, python, machine, folder, None)}

    key = hashlib.sha256(repr((sorted(needed), python, machine, GLIBC)).encode()).hexdigest()[:16]
    return built("wheels", key, build)
