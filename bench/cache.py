"""What the benchmarks fetch once: perf_analyzer's binary, and the packages of peers that hfx itself does not need.

Everything is pinned, installed without dependencies (torch must stay the one that is installed) and kept outside the
checkout, in `$HFX_BENCH_CACHE` or `~/.cache/hfx/bench`. It must not know what the packages are used for.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INSTALL_SECONDS = 600


class FetchFailed(Exception):
    """Packages that can't be had here; the text says why."""


def root() -> Path:
    """The folder of everything fetched."""
    return Path(os.environ.get("HFX_BENCH_CACHE") or Path.home() / ".cache" / "hfx" / "bench")


def packages(name: str, pins: Sequence[str], finish: Callable[[Path], None] = lambda folder: None) -> Path:
    """The folder with the packages `pins` (each NAME==VERSION), installed at the first call and finished by `finish`.

    Raises FetchFailed.
    """

    def build(folder: Path) -> None:
        _install(pins, folder)
        finish(folder)

    # One pin is named; of several, another one may change.
    others = f"-{hashlib.sha256(' '.join(pins).encode()).hexdigest()[:6]}" if len(pins) > 1 else ""
    return made(f"{name}-{'-'.join(pins[0].split('=='))}{others}", build)


def made(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by `build` at the first call; it appears whole or not at all."""
    target = root() / name
    with _locked(target.with_name(f"{target.name}.lock")):
        if target.is_dir():
            return target
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(staging)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def _install(pins: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    try:
        done = subprocess.run([*command, *pins], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchFailed(f"pip took longer than {INSTALL_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchFailed(errors[-1] if errors else f"pip ended with code {done.returncode}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
