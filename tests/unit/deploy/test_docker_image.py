"""The image of docker/Dockerfile: wheels for its Python, and its command without arguments."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hfx.deploy.sizing import LOAD_SECONDS
from hfx.deploy.wheels import GLIBC
from hfx.releases import MINIMUM_SECURE, release
from tests.rigs.machine.tiers import full
from tests.rigs.servers.serve_process import HFX
from tests.rigs.servers.toy_models import write_toy

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
DEVICES = ("cpu", "gpu")


def stage(device: str) -> str:
    """Return the lines of the stage that `FROM ${DEVICE}` takes, with continued lines joined and arguments replaced."""
    [lines] = re.findall(rf"^FROM \S+ AS {device}\n(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    text = lines.replace("\\\n", "")
    for name, default in re.findall(r"^ARG (\w+)=(.*)$", text, re.MULTILINE):
        text = text.replace(f"${{{name}}}", default)
    return text


def packages(device: str) -> list[Requirement]:
    lines = re.findall(r"^RUN .* pip install (.*)$", stage(device), re.MULTILINE)
    return [Requirement(word) for line in lines for word in shlex.split(line) if not word.startswith("-")]


def source(folder: Path) -> Path:
    """Return a copy of the contents of the stage `source`."""
    copy = folder / "src"
    [lines] = re.findall(r"^FROM scratch AS source\n((?:COPY .*\n)+)", DOCKERFILE, re.MULTILINE)
    for line in lines.splitlines():
        for name in line.split()[1:-1]:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                copy.mkdir(exist_ok=True)
                shutil.copy2(ROOT / name, copy)
    return copy


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, ROOT / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "with_hfx", "machine"),
    [
        *(full("cpu", False, "x86_64"), ("gpu", False, "x86_64"), full("cpu", True, "x86_64")),
        *(full("cpu", False, "aarch64"), full("gpu", False, "aarch64"), full("cpu", True, "aarch64")),
    ],
)
def test_the_packages_exist_as_wheels_for_the_python_of_the_image(
    device: str, with_hfx: bool, machine: str, tmp_path: Path
) -> None:
    platforms = [f"--platform=manylinux_2_{glibc}_{machine}" for glibc in GLIBC]
    python, at = release(MINIMUM_SECURE).python, source(tmp_path).as_uri()
    wanted = [str(each).replace("file:///src", at) for each in packages(device) if with_hfx or not each.url]
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:"),
        *(f"--python-version={python}", "--implementation=cp", *platforms, f"--target={tmp_path / 'target'}"),
        *(f"--report={tmp_path / 'report.json'}", f"--constraint={ROOT / 'constraints.txt'}"),
        *wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {entry["metadata"]["name"] for entry in json.loads((tmp_path / "report.json").read_text())["install"]}
    assert found & {"onnxruntime", "onnxruntime-gpu"} == {"onnxruntime" if device == "cpu" else "onnxruntime-gpu"}
    assert {"tokenizers", "numpy", *(("hfx", "uvicorn") if with_hfx else ())} <= found
    assert not found & {"torch", "transformers"}


def test_image_versions_equal_the_tested_constraints() -> None:
    tested = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    pinned = [each for device in DEVICES for each in packages(device) if not each.url]
    image = {f"{each.name.removesuffix('-gpu')}{each.specifier}" for each in pinned}
    assert image <= tested


def test_the_health_check_is_as_patient_as_the_liveness_probe_of_kubernetes() -> None:
    """A tool that replaces unhealthy containers must not act before `hfx serve`, which may need a whole start."""
    [line] = re.findall(r"^HEALTHCHECK (.*?) *\\$", DOCKERFILE, re.MULTILINE)
    options = dict(word.removeprefix("--").split("=") for word in line.split())
    assert int(options["interval"].removesuffix("s")) * int(options["retries"]) >= LOAD_SECONDS


def test_the_image_serves_without_keys_only_if_hfx_insecure_is_set(
    tmp_path: Path,
) -> None:
    commands = {device: re.findall(r"^CMD (\[.*\])$", stage(device), re.MULTILINE)[0] for device in DEVICES}
    assert commands["gpu"] == commands["cpu"].replace('"cpu"', '"gpu"')
    command = json.loads(commands["cpu"])
    assert command[0] == "hfx" and command[-2:] == ["--host", "0.0.0.0"]
    models = write_toy(tmp_path / "models")
    words = [*HFX, *(word.replace("/models", str(models)) for word in command[1:])]
    nothing = {"PATH": str(tmp_path)}
    refused = subprocess.run(words, env=os.environ | nothing, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "HFX_API_KEY_FILE" in refused.stderr and "HFX_INSECURE=1" in refused.stderr
    open_to_all = os.environ | nothing | {"HFX_INSECURE": "1"}
    done = subprocess.run(words, env=open_to_all, capture_output=True, text=True)
    assert done.returncode == 5 and "tritonserver on PATH" in done.stderr


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_by_itself_is_a_plain_tritonserver_of_the_models(device: str, tmp_path: Path) -> None:
    assert re.search(r"^COPY .*hfx/triton/arguments\.py .*/opt/hfx/$", DOCKERFILE, re.MULTILINE)
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    words = [sys.executable, "-I", "-S", ROOT / "hfx" / "triton" / "arguments.py", device]  # the stdlib alone
    done = subprocess.run(
        words, env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}, capture_output=True, text=True
    )
    assert {
        *("--model-repository=/models", f"--model-config-name={device}", "--disable-auto-complete-config"),
        *("--model-control-mode=none", "--exit-timeout-secs=30"),
    } <= set(done.stdout.splitlines()), done.stderr
