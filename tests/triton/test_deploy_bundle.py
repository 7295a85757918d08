"""A bundle on a plain tritonserver whose Python has no packages: its answers, and the libraries of its processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import HistogramMetricFamily

from hfx.cli import main
from hfx.client import Client
from hfx.deploy import bundle, compose, kserve
from hfx.deploy.deployment import Deployment, open_deployment
from hfx.deploy.options import Scale, Service
from hfx.deploy.sizing import size
from hfx.deploy.wheels import requirements
from hfx.front.metrics import FAMILIES
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from hfx.process import end
from hfx.repository import models
from hfx.repository.edit import Edit, change
from hfx.triton import process
from hfx.triton.liveness import call
from hfx.triton.server import Ports, choose_ports, is_ready
from tests import zoo
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.wheels import HERE, wheels_for
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers import installed_triton
from tests.rigs.servers.generation_server import RUNTIMES, SLOTS

pytestmark = pytest.mark.triton

TEXTS = ["A lovely garden, and kind people.", "The room was dirty and the staff rude."]


@dataclass(frozen=True)
class Served:
    folder: Path
    pid: int
    ports: Ports
    python: Path  # without any package


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    repository = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", repository, "sentiment", "fp32", "onnxruntime")
    # Instances of its own keep its Python steps.
    change(repository, "sentiment", [Edit("sentiment_net", "instances", 2)], "tests")
    export_zoo("stories-gpt2", repository, "stories", "int8", RUNTIMES["stories"], slots=SLOTS["stories"])
    export_zoo("sentiment-distilbert", repository, "verdicts", "int8", "onnxruntime")
    return open_deployment(repository, ["sentiment", "stories", "verdicts"])


@pytest.fixture(scope="module")
def served(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(written(deployment, tmp_path_factory.mktemp("deploy")), tmp_path_factory.mktemp("plain")) as running:
        yield running


def written(deployment: Deployment, folder: Path) -> Path:
    bundle.write(deployment, folder / "bundle", bundle.Packages(HERE, wheels_for(requirements(deployment))))
    return folder / "bundle"


def unclosed(line: list[str]) -> list[str]:
    """Return a tritonserver's command line without the secret value that opens its closed APIs."""
    return [re.sub("no:key=[0-9a-f]{32}$", "no:key=", word) for word in line]


def readme_line(folder: Path) -> list[str]:
    """Return the command line in the README of a bundle."""
    line = re.search(r"^    (tritonserver .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert line
    return shlex.split(line[1])


@contextmanager
def serving(folder: Path, place: Path) -> Iterator[Served]:
    """Yield the server with the arguments of the bundle's README and a Python without any package."""
    wheel, ports, python = installed_triton.find(), choose_ports(Ports(), "127.0.0.1"), place / "bare/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "bare"], check=True)
    environment = dict(wheel.environment) | {"PATH": f"{python.parent}{os.pathsep}/usr/bin:/bin"}
    backends = wheel.backend_directory(place / "backends")
    shutil.rmtree(backends / "onnxruntime")
    arguments = [word.replace("=/models", f"={folder}") for word in readme_line(folder)[1:]]
    addresses = [f"--{use}-address=127.0.0.1" for use in ("http", "grpc", "metrics")]
    numbers = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    prefix = f"--backend-config=python,shm-region-prefix-name=bundle_test_{os.getpid()}_"
    command = [str(wheel.binary), *arguments, f"--backend-directory={backends}", *addresses, *numbers, prefix]
    running = process.spawn(command, place / "log", environment, place)
    try:
        wait_until(lambda: running.poll() is not None or is_ready(f"http://127.0.0.1:{ports.http}"), "ready")
        assert running.poll() is None, (place / "log").read_text()[-4000:]
        yield Served(folder, running.pid, ports, python)
    finally:
        end(running, grace=20)


def test_a_bundle_answers_like_the_published_models_run_locally(served: Served, deployment: Deployment) -> None:
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


def test_the_pod_of_kserve_runs_the_same_line_and_its_probe_finds_every_model_alive(
    served: Served, tmp_path: Path
) -> None:
    deployment = open_deployment(served.folder, ["sentiment", "stories"])
    here = replace(deployment, release=replace(deployment.release, python=HERE))
    kserve.write(here, size(here, Scale(), {}), Service("s3://models/bundle"), tmp_path / "out")
    [container] = yaml.safe_load((tmp_path / "out/serving-runtime.yaml").read_text())["spec"]["containers"]
    lines = ([word.replace("/mnt/models", "/models") for word in container["args"]], readme_line(served.folder))
    assert unclosed(lines[0]) == unclosed(lines[1])
    given = {
        "/mnt/models": str(served.folder),
        ":8000": f":{served.ports.http}",
        ":8002": f":{served.ports.metrics}",
        "python3": str(served.python),
    }
    command = " ".join(container["livenessProbe"]["exec"]["command"])
    for written_value, value in given.items():
        command = command.replace(written_value, value)
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "healthy: sentiment, stories, stories_stream, verdicts\n"), done


@pytest.mark.full
def test_a_bundle_answers_like_the_checkpoints_for_every_task(
    many_tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [entry.name for entry in models(many_tasks)]
    tasks = {entry.manifest.task for entry in models(many_tasks) if entry.manifest}
    assert len(tasks) >= 7
    folder = written(open_deployment(many_tasks, names), tmp_path)
    with serving(folder, tmp_path) as served:
        url = f"127.0.0.1:{served.ports.grpc}"
        assert main(["deploy", "check", url, "--repository", str(folder), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["models"]
    assert {each["name"] for each in checked} == set(names)


def test_every_metric_in_the_dashboard_and_alerts_exists(
    served: Served, deployment: Deployment, tmp_path: Path
) -> None:
    compose.write(deployment, tmp_path / "out")
    panels = json.loads((tmp_path / "out/grafana/dashboard.json").read_text())["panels"]
    rules = yaml.safe_load((tmp_path / "out/prometheus/rules.yml").read_text())["groups"][0]["rules"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [rule["expr"] for rule in rules]
    named = set(re.findall(r"\b(?:nv|hfx)_\w+", " ".join(expressions)))
    lines = call(f"http://127.0.0.1:{served.ports.metrics}/metrics").decode().splitlines()
    there = {line.split("{")[0] for line in lines if not line.startswith("#")}
    of_the_front = {family.name + "_bucket" * (family.kind is HistogramMetricFamily) for family in FAMILIES}
    assert named and named <= there | of_the_front, named - there


def test_an_encoder_becomes_one_native_model_where_possible(served: Served, deployment: Deployment) -> None:
    encoder = LocalModel.open(deployment.repository, "verdicts")
    with Client(f"127.0.0.1:{served.ports.grpc}") as client:
        for text, answer in zip(TEXTS, client.classify("verdicts", TEXTS), strict=True):
            expected = encoder.infer({"text_input": text})
            assert [each.label for each in answer.predictions] == expected["label"]
            assert [each.score for each in answer.predictions] == expected["score"]
    assert [path.name for path in served.folder.glob("verdicts*")] == ["verdicts"]
    mapped = Path(f"/proc/{served.pid}/maps").read_text()
    assert f"{served.folder}/verdicts/1/libtriton_hfx_" in mapped
    assert f"{served.folder}/sentiment/1/packages/onnxruntime/capi" in mapped


def test_python_processes_load_libraries_from_the_bundle_only(served: Served) -> None:
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
    for member, packages in (("stories_stream", ("tokenizers", "onnxruntime")), ("sentiment_net", ("onnxruntime",))):
        pid = next(pid for pid, name in stubs.items() if name.startswith(member))
        libraries = Path(f"/proc/{pid}/maps").read_text()
        assert all(f"{own}/{package}" in libraries for package in packages), member
