"""A bundle on a plain tritonserver whose Python has no packages: its answers, and what its processes have loaded."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hfx.client import Client
from hfx.deploy import bundle
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.monitoring import PANELS, alerts
from hfx.deploy.wheels import requirements
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from hfx.triton import process
from hfx.triton.liveness import call
from hfx.triton.server import Ports, choose_ports, is_ready
from hfx.triton.wheel import find_wheel
from tests import zoo
from tests.published import export_zoo
from tests.triton.generation_rig import RUNTIMES, SLOTS
from tests.waiting import wait_until
from tests.wheels import HERE, wheels_for

pytestmark = pytest.mark.triton

TEXTS = ["A lovely garden, and kind people.", "The room was dirty and the staff rude."]


@dataclass(frozen=True)
class Served:
    folder: Path
    pid: int
    ports: Ports


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    repository = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", repository, "sentiment", "int8")
    export_zoo(
        "stories-gpt2", repository, "stories", "int8", RUNTIMES["stories"], slots=SLOTS["stories"], max_drop=0.06
    )
    return open_deployment(repository, ["sentiment", "stories"])


@pytest.fixture(scope="module")
def folder(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("deploy") / "bundle"
    offline = wheels_for(requirements(deployment))
    bundle.write(deployment, output, bundle.Packages(HERE, offline))
    return output


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with the arguments of the bundle's README and a Python without any package."""
    place, wheel, ports = tmp_path_factory.mktemp("plain"), find_wheel(), choose_ports(Ports(), "127.0.0.1")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "bare"], check=True)
    environment = dict(wheel.environment) | {"PATH": f"{place / 'bare/bin'}{os.pathsep}/usr/bin:/bin"}
    backends = wheel.backend_directory(place / "backends")
    # NVIDIA's images have an ONNX Runtime backend of their own. That of the embedded server is Python, and gets the
    # bundle's packages.
    for package in (folder / "sentiment/1/packages").iterdir():
        (backends / "onnxruntime" / package.name).symlink_to(package)
    line = re.search(r"^    (tritonserver .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert line
    arguments = [word.replace("=/models", f"={folder}") for word in shlex.split(line[1])[1:]]
    addresses = [f"--{use}-address=127.0.0.1" for use in ("http", "grpc", "metrics")]
    numbers = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    prefix = f"--backend-config=python,shm-region-prefix-name=bundle_test_{os.getpid()}_"
    command = [str(wheel.binary), *arguments, f"--backend-directory={backends}", *addresses, *numbers, prefix]
    running = process.spawn(command, place / "log", environment, place)
    try:
        wait_until(lambda: running.poll() is not None or is_ready(f"http://127.0.0.1:{ports.http}"), "ready")
        assert running.poll() is None, (place / "log").read_text()[-4000:]
        yield Served(folder, running.pid, ports)
    finally:
        process.end(running, grace=20)


def test_encoder_and_generator_answer_as_the_published_models_in_this_process(
    served: Served, deployment: Deployment
) -> None:
    prompts = [example.prompt for example in zoo.heldout("stories", 4)]
    encoder = LocalModel.open(deployment.repository, "sentiment")
    with Client(f"127.0.0.1:{served.ports.grpc}") as client:
        for text, answer in zip(TEXTS, client.classify("sentiment", TEXTS), strict=True):
            expected = encoder.infer({"text_input": text})
            assert [each.label for each in answer.predictions] == expected["label"]
            scores = [each.score for each in answer.predictions]
            assert scores == pytest.approx(expected["score"], abs=1e-4)  # sums in another order
        with LocalGenerator.open(deployment.repository, "stories") as engine:
            for prompt in prompts:
                expected = engine.infer({"text_input": prompt})
                assert client.generate("stories", prompt).text == expected["text_output"]


def test_every_metric_of_dashboard_and_alerts_is_one_that_the_server_has(
    served: Served, deployment: Deployment
) -> None:
    expressions = [query.expression for panel in PANELS for query in panel.queries]
    expressions += [alert.expression for alert in alerts(deployment)]
    named = set(re.findall(r"\b(?:nv|hfx)_\w+", " ".join(expressions)))
    lines = call(f"http://127.0.0.1:{served.ports.metrics}/metrics").decode().splitlines()
    there = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert named and named <= there, named - there


def test_every_library_of_its_python_processes_is_the_bundles(served: Served) -> None:
    stubs = {pid: name for name, pids in process.stubs(served.pid).items() for pid in pids}
    assert {name.rsplit("_", 2)[0] for name in stubs.values()} == {
        *("sentiment_tokenize", "sentiment_net", "sentiment_postprocess", "stories", "stories_stream")
    }
    own = str(served.folder / "sentiment/1/packages")
    for pid, name in stubs.items():
        mapped = set(re.findall(r"(/\S+\.so\S*)$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE))
        foreign = {path for path in mapped if "site-packages" in path and "pytriton" not in path}
        assert foreign == set(), name
        assert any(path.startswith(f"{own}/numpy") for path in mapped) or name.startswith("stories_0")
    engine = next(pid for pid, name in stubs.items() if name.startswith("stories_stream"))
    libraries = Path(f"/proc/{engine}/maps").read_text()
    assert f"{own}/tokenizers" in libraries and f"{own}/openvino" in libraries
