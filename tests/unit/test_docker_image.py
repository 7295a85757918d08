"""The image of docker/Dockerfile: its packages exist for its Python, and without arguments it serves /models."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hfx.releases import MINIMUM_SECURE, release

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
DEVICES = ("cpu", "gpu")


def stage(device: str) -> str:
    """The lines of the stage that `FROM ${DEVICE}` takes, with continued lines joined."""
    return re.findall(rf"^FROM \S+ AS {device}\n(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)[0].replace(
        "\\\n", ""
    )


def packages(device: str) -> list[Requirement]:
    words = shlex.split(re.findall(r"^RUN (.*)$", stage(device), re.MULTILINE)[0])
    assert words[1:3] == ["pip", "install"]
    return [Requirement(word) for word in words[3:] if not word.startswith("-")]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, ROOT / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("device", DEVICES)
def test_the_packages_exist_as_wheels_for_the_python_of_the_image(device: str, tmp_path: Path) -> None:
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (28, 27, 17)]  # Ubuntu 24.04 has 2.39
    python = release(MINIMUM_SECURE).python
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:"),
        *(f"--python-version={python}", "--implementation=cp", *platforms, f"--target={tmp_path / 'target'}"),
        *(f"--report={tmp_path / 'report.json'}", *map(str, packages(device))),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {entry["metadata"]["name"] for entry in json.loads((tmp_path / "report.json").read_text())["install"]}
    wanted = {"cpu": {"onnxruntime", "openvino"}, "gpu": {"onnxruntime-gpu"}}
    assert found & {"onnxruntime", "onnxruntime-gpu", "openvino"} == wanted[device]
    assert {"tokenizers", "numpy"} <= found


def test_the_versions_are_those_that_are_tested_here() -> None:
    tested = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    image = {f"{each.name.removesuffix('-gpu')}{each.specifier}" for device in DEVICES for each in packages(device)}
    assert image <= tested


@pytest.mark.parametrize("device", DEVICES)
def test_without_arguments_the_image_serves_the_models_of_its_device(device: str, tmp_path: Path) -> None:
    command = json.loads(re.findall(r"^CMD (\[.*\])$", stage(device), re.MULTILINE)[0])
    assert command[:3] == ["python3", "-B", "/opt/hfx/arguments.py"]
    assert re.search(r"^COPY .*hfx/triton/arguments\.py .*/opt/hfx/$", DOCKERFILE, re.MULTILINE)
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    words = [sys.executable, "-I", "-S", ROOT / "hfx" / "triton" / "arguments.py", *command[3:]]  # the stdlib alone
    done = subprocess.run(
        words, env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}, capture_output=True, text=True
    )
    assert {
        *("--model-repository=/models", f"--model-config-name={device}", "--disable-auto-complete-config"),
        *("--model-control-mode=none", "--exit-timeout-secs=30"),
    } <= set(done.stdout.splitlines()), done.stderr
