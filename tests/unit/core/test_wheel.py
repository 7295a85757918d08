"""The wheel outside the checkout: its contents, the client extra alone in its newest and lowest versions, exporting."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hfx import native
from tests import zoo
from tests.rigs.clients.client_servers import Script, grpc_server
from tests.rigs.files.checkouts import ROOT, copy_checkout
from tests.rigs.machine.tiers import few

pytestmark = pytest.mark.slow

ABSENT = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "tokenizers", "scipy", "safetensors")
# Without the checkout on the path.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the checkout, as leftovers of a build would go into the next one."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = copy_checkout(folder / "checkout")
    # What setup.py compiles is there already, and newer than its sources: test_native_library has it compiled.
    compiled = checkout / "build" / "lib" / "hfx" / "native"
    compiled.mkdir(parents=True)
    for library in (checkout / "hfx" / "native").glob("*.so"):
        shutil.copy(library, compiled)
    out(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, checkout)
    return next(folder.glob("*.whl"))


VERSIONS = {"newest": (), "lowest": ("--constraint", ROOT / "constraints-lowest.txt")}


@pytest.fixture(scope="module", params=few(VERSIONS))
def client_only(wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the client extra only, from the package index, in both versions."""
    return installed(tmp_path_factory.mktemp("client"), f"{wheel}[client]", *VERSIONS[request.param])


def installed(folder: Path, *words: str | Path) -> Path:
    venv.create(folder / "venv")
    programs = folder / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--quiet", "--disable-pip-version-check")
    out(*pip, "install", "--no-compile", *words)
    return programs


def out(*words: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_wheel_holds_real_files_of_every_part(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("cli/export.py", "exporter/pipeline.py", "exporter/parity_texts.txt", "client/client.py",
                 "python_backends/tokenize.py", "python_backends/onnxruntime/model.py",
                 "front/playground/page.html", "front/playground/page.js"):  # fmt: skip
        assert f"hfx/{part}" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/", "exporter/"))]


def test_one_wheel_for_all_pythons_has_the_native_library(wheel: Path, client_only: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_aarch64.manylinux_2_17_x86_64.whl")
    code = "import hfx.native as n; print(n.library(), n.kernels())"
    library, *name = out(client_only / "python", "-c", code, folder=client_only).split()
    assert library.startswith(str(client_only.parent)) and name == native.kernels().split()


def test_an_environment_with_the_wheel_alone_runs_the_command_line(wheel: Path, client_only: Path) -> None:
    """The extra client adds nothing to what `pip install WHEEL` installs."""
    assert out(client_only / "hfx", "--version", folder=client_only).split() == ["hfx", wheel.name.split("-")[1]]
    assert "export" in out(client_only / "hfx", "--help", folder=client_only)
    assert out(client_only / "python", "-c", "import hfx, hfx.client; print(hfx.__version__)", folder=client_only)


def test_the_client_installs_nothing_that_exports_or_runs_models(client_only: Path) -> None:
    code = f"import importlib.util as u; print([name for name in {ABSENT!r} if u.find_spec(name)])"
    assert out(client_only / "python", "-c", code, folder=client_only).strip() == "[]"


ASK = """
import asyncio, sys
from hfx.client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    print(client.generate("writer", "write 2").text, [piece.text for piece in client.stream("writer", "write 2")])
async def ask():
    async with AsyncClient(sys.argv[1]) as client:
        print([each.text for each in await client.summarize("writer", ["write 1", "write 1"])])
asyncio.run(ask())
"""


def test_the_client_extra_alone_can_call_a_server(url: str, client_only: Path) -> None:
    lines = out(client_only / "python", "-c", ASK, url, folder=client_only).splitlines()
    assert lines == ["a0 a1  ['a0 ', 'a1 ']", "['a0 ', 'a0 ']"]


def test_options_are_known_by_their_names(client_only: Path) -> None:
    words = [client_only / "hfx", "export", "/nowhere/checkpoint", "--name", "nothing"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 3 and "There is no folder /nowhere/checkpoint." in done.stderr


def test_hfx_infer_works_with_the_client_extra_alone(client_only: Path) -> None:
    with grpc_server(Script()) as url:
        answer = out(client_only / "hfx", "--json", "infer", "writer", "write 2", "--url", url, folder=client_only)
    assert json.loads(answer)["results"][0]["text_output"] == "a0 a1 "


@pytest.fixture(scope="module")
def exporting(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that exports; beside them is the model `sentiment` that it has published.

    Dependencies are this environment's, by a .pth file: the test is about hfx's wheel, not about pip's resolver.
    """
    folder = tmp_path_factory.mktemp("exporting")
    programs = installed(folder, "--no-deps", wheel)
    site = next((programs.parent / "lib").glob("python*/site-packages"))
    packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "dependencies.pth").write_text(f"{packages}\n")
    options = ("--name", "sentiment", "--device", "cpu", "--cpu-runtime", "onnxruntime")  # else they are timed, for 6 s
    export = ["--json", "export", str(zoo.checkpoint("sentiment-distilbert")), *options]
    assert json.loads(out(programs / "hfx", *export, folder=programs))["name"] == "sentiment"
    return programs


@pytest.mark.full
def test_the_wheel_exports_from_an_environment_of_its_own(exporting: Path) -> None:
    assert "export" in out(exporting / "hfx", "--help", folder=exporting)
    origin = "import hfx.exporter.pipeline as p; print(p.__file__)"
    assert out(exporting / "python", "-c", origin, folder=exporting).startswith(str(exporting.parent))
    assert (exporting / "model_repository" / "sentiment" / "hfx.json").is_file()


@pytest.mark.parametrize("words", [("verify", "sentiment", "--url"), ("deploy", "check")])
def test_the_client_alone_verifies_a_server(words: tuple[str, ...], exporting: Path, client_only: Path) -> None:
    command = [client_only / "hfx", *words, "127.0.0.1:1", "--repository", exporting / "model_repository"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=100)
    assert done.returncode == 5 and "can't be reached" in done.stderr
