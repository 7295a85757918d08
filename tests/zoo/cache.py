"""The cache of built folders, outside the checkout: `ROOT/<digest>/<name>`, so that a folder has its plain name.

A folder appears by one rename, whole or not at all; one process builds, and the others wait.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
LIBRARIES = ("torch", "transformers", "tokenizers")


def root() -> Path:
    """`$HFX_ZOO_CACHE`, or `~/.cache/hfx/zoo`."""
    return Path(os.environ.get("HFX_ZOO_CACHE") or Path.home() / ".cache" / "hfx" / "zoo")


def digest(recipe: Any, sources: tuple[str, ...]) -> str:
    """What `recipe` (a dataclass) builds, as a key: of its fields, the text of `sources`, the libraries' versions."""
    parts = {
        "recipe": dataclasses.asdict(recipe),
        "sources": {name: (PACKAGE / name).read_text(encoding="utf-8") for name in sorted(sources)},
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def built(name: str, key: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """The folder `name` of `key`; `build(folder)` fills it when it is absent, and what it returns becomes its report.

    A build that raises or is killed leaves no folder.
    """
    home = root() / key
    target = home / name
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it ends with the process, however that ends
        if not target.is_dir():
            _publish(target, build)
    return target


def report(folder: Path) -> dict[str, Any]:
    """What the build of a cached `folder` reported: its metric, its seconds."""
    loaded: dict[str, Any] = json.loads(_report_file(folder).read_text(encoding="utf-8"))
    return loaded


def _publish(target: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    # Under the lock no other build is under way: what is there was left by one that was killed.
    for leftover in target.parent.glob(".building-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        folder = staging / target.name
        folder.mkdir()
        figures = build(folder)
        _report_file(target).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        folder.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _report_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")
