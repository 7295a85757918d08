"""The wheel works outside the checkout: built, installed into a fresh environment, asked for help, and exporting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests import zoo
from tests.unit.wheels import build_wheel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_real_files_of_every_part(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("cli/export.py", "exporter/pipeline.py", "exporter/parity/texts.txt", "client/client.py",
                 "python_backends/tokenize.py", "python_backends/onnxruntime/model.py"):  # fmt: skip
        assert f"hfx/{part}" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/", "exporter/"))]


def test_it_exports_from_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are this environment's, by a .pth file: what is tested is hfx's wheel, not pip's resolver."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    site = next((home / "lib").glob("python*/site-packages"))
    packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def hfx(*words: str) -> str:
        command = [str(home / "bin" / "hfx"), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "export" in hfx("--help")
    origin = "import hfx.exporter.pipeline as p; print(p.__file__)"
    found = subprocess.run([python, "-c", origin], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.stdout.startswith(str(home)), found.stdout + found.stderr
    checkpoint = str(zoo.checkpoint("sentiment-distilbert"))
    result = json.loads(hfx("--json", "export", checkpoint, "--name", "sentiment", "--device", "cpu"))
    assert result["name"] == "sentiment"
    assert (tmp_path / "model_repository" / "sentiment" / "hfx.json").is_file()
