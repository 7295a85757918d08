"""The export of a generator that is killed at any step leaves the repository as it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.exporter.generation.steps import STEPS
from hfx.repository import recover
from hfx.repository.publish import stagings
from tests.unit import writing_checkpoints
from tests.unit.test_export_generation import published

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from hfx.exporter.generation.steps import STEPS
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.source import open_checkpoint

def kill(plan, made):
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint, repository, stop = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
options = ExportOptions(name="model", precision="fp32", device="cpu", repository=repository, force=True,
                        cpu_runtime="openvino")
steps = [*STEPS[:stop], replace(STEPS[stop], run=kill)]
export(make_plan(open_checkpoint(checkpoint), options), lambda title: nullcontext(), steps)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writing_checkpoints.save(tmp_path_factory.mktemp("checkpoint"), "gpt2")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("crash")
    published(checkpoint, folder, name="model")
    return folder


def contents(repository: Path) -> dict[str, str]:
    """Every file of the repository's models, hashed."""
    files = [path for path in sorted(repository.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(repository)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.relative_to(repository).parts[0].startswith(".")
    }


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[step.title for step in STEPS])
def test_a_kill_at_any_step_changes_nothing(step: int, repository: Path, checkpoint: Path) -> None:
    before = contents(repository)
    words = [sys.executable, "-c", KILLED, str(checkpoint), str(repository), str(step)]
    killed = subprocess.run(words, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    assert contents(repository) == before
    recover(repository)
    assert contents(repository) == before
    assert not stagings(repository)
