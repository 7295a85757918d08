"""What `pip install hfx[client]` brings is enough to ask a server, and nothing of what exports and runs models."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest

from tests.unit.client_servers import Script, grpc_server, http_server
from tests.unit.wheels import build_wheel

ABSENT = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "openvino", "tokenizers", "scipy", "safetensors")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the client only, from the package index."""
    folder = tmp_path_factory.mktemp("client")
    wheel = build_wheel(folder)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[client]"]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return python


def out(python: Path, *words: str) -> str:
    done = subprocess.run([python, *words], capture_output=True, text=True, cwd=python.parent, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_nothing_that_exports_or_runs_models_is_installed(python: Path) -> None:
    code = f"import importlib.util as u; print([name for name in {ABSENT!r} if u.find_spec(name)])"
    assert out(python, "-c", code).strip() == "[]"


@pytest.mark.parametrize("serve", [grpc_server, http_server])
def test_every_door_works_there(serve: object, python: Path) -> None:
    code = """
import asyncio, sys
from hfx.client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    print(client.generate("writer", "write 2").text, [piece.text for piece in client.stream("writer", "write 2")])
async def ask():
    async with AsyncClient(sys.argv[1]) as client:
        print([each.text for each in await client.summarize("writer", ["write 1", "write 1"])])
asyncio.run(ask())
"""
    with serve(Script()) as url:  # type: ignore[operator]
        lines = out(python, "-c", code, url).splitlines()
    assert lines == ["a0 a1  ['a0 ', 'a1 ']", "['a0 ', 'a0 ']"]


def test_the_command_line_asks_from_there(python: Path) -> None:
    with grpc_server(Script()) as url:
        hfx = str(python.parent / "hfx")
        done = subprocess.run(
            [hfx, "--json", "infer", "writer", "write 2", "--url", url], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["results"][0]["text_output"] == "a0 a1 "
