"""`hfx export` on ARM64: what it publishes has the same answers there and here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from hfx.native.build import TARGETS
from tests import zoo
from tests.arm64.conftest import Machine
from tests.rigs.servers.serve_process import HFX

TEXTS = ("a wonderful happy day", "it was sad", "x")


def test_an_export_there_is_served_here(machine: Machine, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(zoo.checkpoint("sentiment-distilbert"), tmp_path / "checkpoint")
    machine.run("hfx", "export", checkpoint, "--quantize", "--name", "exported", "--repository", tmp_path / "models")
    libraries = {path.name for path in (tmp_path / "models" / "exported_net" / "1").glob("*.so")}
    assert libraries == {target.library for target in TARGETS.values()}
    words = ("infer", "exported", *TEXTS, "--local", "--json", "--repository", str(tmp_path / "models"))
    there = json.loads(machine.run("hfx", *words))
    here = json.loads(subprocess.run([*HFX, *words], capture_output=True, text=True, check=True).stdout)
    assert there == {**here, "latency_ms": there["latency_ms"]}
