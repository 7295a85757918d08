"""One home and one identity for each module: the real files are in hfx/; the top-level names are links to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("exporter", "client", "perf", "python_backends")


@pytest.mark.parametrize("name", LINKS)
def test_a_top_level_name_is_a_link_that_can_not_be_imported_where_hfx_is_installed(name: str, tmp_path: Path) -> None:
    assert (ROOT / name).readlink() == Path("hfx") / name
    assert not (ROOT / "hfx" / name).is_symlink()
    code = f"import importlib.util, hfx; print(importlib.util.find_spec({name!r}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "None", "the editable install puts the checkout on sys.path; install it again"
