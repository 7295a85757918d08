"""An export that is killed, or that fails, leaves the repository as it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.exporter.pipeline import STEPS
from hfx.repository import recover
from hfx.repository.publish import stagings
from tests import zoo
from tests.conftest import export_zoo

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
from dataclasses import replace
from contextlib import nullcontext
from pathlib import Path
from hfx.exporter.pipeline import STEPS, export
from hfx.exporter.plan import ExportOptions, make_plan
from hfx.exporter.source import open_checkpoint

def kill(plan, made):
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint, repository, stop = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
options = ExportOptions(name="model", precision="int8", device="cpu", repository=repository, force=True)
steps = [*STEPS[:stop], replace(STEPS[stop], run=kill)]
export(make_plan(open_checkpoint(checkpoint), options), lambda title: nullcontext(), steps)
"""


def contents(repository: Path) -> dict[str, str]:
    """Every file of the repository's models, hashed."""
    files = [path for path in sorted(repository.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(repository)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.relative_to(repository).parts[0].startswith(".")
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("crash")
    export_zoo("sentiment-distilbert", repository, "model", "fp32")
    return repository


@pytest.mark.parametrize("step", range(len(STEPS)), ids=[step.title for step in STEPS])
def test_a_kill_at_any_step_changes_nothing(step: int, published: Path) -> None:
    before = contents(published)
    checkpoint = str(zoo.checkpoint("sentiment-distilbert"))
    killed = subprocess.run([sys.executable, "-c", KILLED, checkpoint, str(published), str(step)], capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    assert contents(published) == before
    recover(published)
    assert contents(published) == before
    assert not stagings(published)
