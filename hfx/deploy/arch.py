"""The processors that a deployment can be for, and the native library for each of them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import PurePosixPath

from hfx.deploy.options import Arch
from hfx.errors import UsageError
from hfx.manifest import Manifest
from hfx.native import missing
from hfx.native.build import TARGETS

MACHINES: Mapping[Arch, str] = {"amd64": "x86_64", "arm64": "aarch64"}  # their names in wheels and platform.machine()
LIBRARIES = {arch: TARGETS[machine].library for arch, machine in MACHINES.items()}  # in a published model


def this_arch() -> Arch:
    """Return the processor of this machine: arm64, or else amd64."""
    return "arm64" if platform.machine() in ("aarch64", "arm64") else "amd64"  # macOS has its own name


def is_foreign(path: str, arch: Arch) -> bool:
    """Return whether the file at `path` is the native library for a processor other than `arch`."""
    name = PurePosixPath(path).name
    return name in LIBRARIES.values() and name != LIBRARIES[arch]


def check_library(manifest: Manifest, arch: Arch) -> None:
    """Raise UsageError if a folder of the model has a native library, but none for `arch`."""
    if missing(manifest.files, MACHINES[arch]):
        raise UsageError(
            f"The model {manifest.name!r} has no native library for {arch}.",
            "Export it again. If it is from a bundle, give the bundle's --arch.",
        )
