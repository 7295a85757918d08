"""The distribution: its metadata, and that each extra installs without the project's constraints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from hfx import native
from hfx.native.build import ZIGLANG
from tests.rigs.files.checkouts import copy_checkout

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALONE = "optimum"  # it needs another transformers than the others
# gpu's package replaces one of the others'; pyspark has no wheel, without which pip resolves for no other Python.
APART = (ALONE, "gpu", "spark")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    checkout = copy_checkout(folder / "checkout")
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", checkout)
    return folder / "dist"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with a current pip."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip", "twine")
    return folder / "bin" / "python"


def test_the_metadata_is_complete(distributions: Path, python: Path) -> None:
    run(python, "-m", "twine", "check", "--strict", *distributions.iterdir())
    wheel = zipfile.ZipFile(next(distributions.glob("*.whl")))
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = message_from_string(wheel.read(name).decode())
    assert metadata["License-Expression"] == PROJECT["license"] and metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] and metadata["Summary"] and metadata.get_all("Classifier")
    assert sorted(metadata.get_all("Provides-Extra", [])) == sorted(PROJECT["optional-dependencies"])


def test_the_wheel_has_every_file_of_the_package(distributions: Path) -> None:
    """The wheel is built from the sdist, so the sdist has the files too."""
    names = zipfile.ZipFile(next(distributions.glob("*.whl"))).namelist()
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "hfx").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {name for name in names if name.startswith("hfx/")}


def test_an_sdist_without_a_compiler_installs_hfx_without_native_kernels(
    distributions: Path, python: Path, tmp_path: Path
) -> None:
    """`pip install ziglang` and `python -m hfx.native.build` then build them, as the error says."""
    run(python, "-m", "pip", "install", "--quiet", "--upgrade", "setuptools")
    sdist = next(distributions.glob("*.tar.gz"))
    wheel = [python, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path]
    assert "No module named ziglang" in run(*wheel, sdist)
    [pure] = tmp_path.glob("hfx-*-py3-none-any.whl")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", pure)
    kernels = (python, "-c", "import hfx.native; print(repr(hfx.native.kernels()))")
    with pytest.raises(AssertionError, match="NativeMissing"):
        run(*kernels)
    run(python, "-m", "pip", "install", "--quiet", ZIGLANG)
    run(python, "-m", "hfx.native.build")
    assert run(*kernels).strip() == repr(native.kernels())


@pytest.mark.parametrize("version", re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"])))
@pytest.mark.parametrize("extras", [ALONE, ",".join(sorted({*PROJECT["optional-dependencies"]} - {*APART, "dev"}))])
def test_extras_resolve_without_constraints(
    extras: str, version: str, distributions: Path, python: Path, tmp_path: Path
) -> None:
    """Extras that can be installed together are resolved together, so each of them also resolves alone.

    pip evaluates `python_version < '3.13'` for its own Python, and for 3.13 nvidia-pytriton's numpy has no wheel.
    """
    wheel = next(distributions.glob("*.whl"))
    if version == "3.13":
        extras = extras.replace(",embedded,", ",")
    words = ["--dry-run", "--quiet", "--only-binary=:all:", "--python-version", version, "--target", tmp_path]
    run(python, "-m", "pip", "install", *words, f"{wheel}[{extras}]")


def run(*words: str | Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr
