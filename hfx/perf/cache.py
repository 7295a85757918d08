"""The cache of measurements: third-party tools and packages, and models converted for them.

Packages are pinned, and installed without dependencies, so that the installed torch is kept. They are outside of the
environment, in `$HFX_PERF_CACHE` or `~/.cache/hfx/perf`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock

from hfx.errors import FetchFailed
from hfx.process import exit_reason

INSTALL_SECONDS = 3600  # llama.cpp is compiled


def root() -> Path:
    """Return the folder of the cache."""
    return Path(os.environ.get("HFX_PERF_CACHE") or Path.home() / ".cache" / "hfx" / "perf")


def packages(name: str, pins: Sequence[str], finish: Callable[[Path], None] = lambda folder: None) -> Path:
    """Return the folder with the packages `pins` (each NAME==VERSION).

    The first call installs them, then calls `finish`.

    Raises FetchFailed.
    """

    def build(folder: Path) -> None:
        _install(name, pins, folder)
        finish(folder)

    return made(folder_name(name, pins), build)


def installed(name: str, pins: Sequence[str]) -> Path | None:
    """Return the folder that `packages` returns, or None if it has not been fetched yet."""
    folder = root() / folder_name(name, pins)
    return folder if folder.is_dir() else None


def made(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache.

    The first call makes it with `build`; it appears complete or not at all.
    """
    target = root() / name
    with _locked(target):
        if target.is_dir():
            return target
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(staging)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def folder_name(name: str, pins: Sequence[str]) -> str:
    """Return the name of the folder with the packages `pins`: the first pin and a hash of all, as any may change."""
    others = f"-{hashlib.sha256(' '.join(pins).encode()).hexdigest()[:6]}" if len(pins) > 1 else ""
    return f"{name}-{'-'.join(pins[0].split('=='))}{others}"


def _install(name: str, pins: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    try:
        done = subprocess.run([*command, *pins], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:  # its output is bytes, and says nothing of the reason
        reason = f"pip did not end within {INSTALL_SECONDS:g} s"
    else:
        if done.returncode == 0:
            return
        errors = re.findall(r"^ERROR: (.*?)\.?$", done.stderr, re.MULTILINE)
        reason = errors[-1] if errors else f"pip ended with {exit_reason(done.returncode)}"
    raise FetchFailed(
        f"The packages of {name} ({', '.join(pins)}) can't be fetched: {reason}.",
        f"pip must reach its index (`pip download {pins[0]}` tells more); or copy the folder "
        f"{root() / folder_name(name, pins)} from a machine that has it.",
    )


def _locked(target: Path) -> AbstractContextManager[object]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(target.with_name(f"{target.name}.lock")).acquire()
    except OSError as error:
        raise FetchFailed(
            f"Nothing can be kept in {root()}: {error.strerror}.",
            "Give a folder that you may write to: HFX_PERF_CACHE.",
        ) from error
