"""Copies of the checkout, with the files that packages are built from."""

from __future__ import annotations

import shutil
from pathlib import Path

from hfx.native.build import SHARED

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "release")
NOT_COPIED = shutil.ignore_patterns("__pycache__")


def copy_checkout(folder: Path) -> Path:
    """Copy what the wheel is built from, with the native library of the checkout, into `folder`; return it."""
    return _copy(folder, "hfx", *PARTS)


def copy_small_checkout(folder: Path) -> Path:
    """Copy what the native library and a wheel without the rest of hfx are built from into `folder`; return it.

    The library is not there, and is reduced to a source that compiles in no time.
    """
    shared = [f"hfx/python_backends/{name}" for name in SHARED]
    _copy(folder, "hfx/__init__.py", "hfx/errors.py", "hfx/native", *shared, *PARTS)
    native = folder / "hfx/native"
    for path in (*native.rglob("*.cpp"), *native.rglob("*.so")):
        path.unlink()
    return _copy(folder, "hfx/native/choose.cpp")


def _copy(folder: Path, *parts: str) -> Path:
    for part in parts:
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, target, ignore=NOT_COPIED)
        else:
            shutil.copy2(ROOT / part, target)
    return folder
