"""An emulated ARM64 machine, models that were exported on this machine, and their answers here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.rigs.checkpoints.published import export_zoo

SCRIPT = Path(__file__).with_name("machine.sh")
CHECKOUT = Path(__file__).resolve().parents[2]
ROOT = CHECKOUT / "build" / "arm64"
CANNOT = 3  # exit code of machine.sh
SECONDS = 1500.0


@dataclass(frozen=True)
class Machine:
    """An emulated machine with its `variables`; QEMU_CPU is its processor, all of them have the same instructions."""

    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, *words: str | Path) -> list[str]:
        """Return the command that runs `words` there."""
        own = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **self.variables}
        return [
            str(SCRIPT),
            "run",
            str(ROOT),
            "env",
            *(f"{key}={value}" for key, value in own.items()),
            *map(str, words),
        ]

    def run(self, *words: str | Path) -> str:
        """Run `words` there, and return what they print. Fails the test if they fail."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, cwd=CHECKOUT, timeout=SECONDS)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine, with hfx as this checkout's wheel installs it; the tests are skipped where none can be emulated."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(CHECKOUT)]
    subprocess.run(command, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    up = subprocess.run([SCRIPT, "up", ROOT, wheel], capture_output=True, text=True)
    if up.returncode == CANNOT:
        pytest.skip(up.stdout.strip())
    assert up.returncode == 0, up.stdout[-2000:] + up.stderr[-4000:]
    return Machine()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in int8, as this machine exported them."""
    folder = tmp_path_factory.mktemp("models")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8", "native")
    export_zoo("similar-mpnet", folder, "similar", "int8", "native")
    export_zoo("stories-gpt2", folder, "stories", "int8", "native")
    return folder
