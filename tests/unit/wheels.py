"""A wheel of the checkout, built in a copy of it: what a build leaves behind would go into the next one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("hfx", "pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """The wheel, in FOLDER."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for part in PARTS:
        source, target = ROOT / part, checkout / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(checkout)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return next(folder.glob("*.whl"))
