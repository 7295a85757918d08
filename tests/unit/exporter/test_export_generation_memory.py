"""The memory that the export of a generator takes, gate included: little more than its checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from bench import checkpoints
from tests.rigs.checkpoints import generator_checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.full]

EXPORT = """
import resource, sys
from pathlib import Path
from tests.rigs.checkpoints.published import export_checkpoint

options = {"precision": "int8", "max_drop": 1.0, "cpu_runtime": "auto"}
export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), name="m", **options)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak(checkpoint: Path, repository: Path) -> int:
    """Return the peak memory of the process of an export, in bytes."""
    words = [sys.executable, "-c", EXPORT, str(checkpoint), str(repository)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def sizes(checkpoint: Path) -> tuple[int, int]:
    """Return the bytes of all tensors, and of the largest one, in float32."""
    with safe_open(checkpoint / "model.safetensors", framework="np") as tensors:
        counted = [4 * int(tensors.get_tensor(name).size) for name in tensors.keys()]  # noqa: SIM118 - no mapping
    return sum(counted), max(counted)


def test_the_peak_is_little_more_than_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = checkpoints.checkpoint("distilgpt2")
    total, largest = sizes(checkpoint)
    # What the interpreter, torch, transformers and the runtimes take by themselves.
    base = peak(generator_checkpoints.save(tmp_path / "tiny", "gpt2"), tmp_path / "base")
    taken = peak(checkpoint, tmp_path / "repository")
    manifest = json.loads((tmp_path / "repository" / "m" / "hfx.json").read_text())
    assert taken - base <= 1.3 * total + largest, f"{taken / 1e6:.0f} MB, {base / 1e6:.0f} of them the base"
    assert manifest["choices"]["peak_rss_mb"] == pytest.approx(taken / (1 << 20), rel=0.01)
