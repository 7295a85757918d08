"""The manifests of `hfx deploy kubernetes` on a real server: probes, verification, metrics, the end of a pod.

The container's arguments, probes and times are read from the written files. Only what a pod provides is different: the
repository's folder, and free ports of 127.0.0.1. The tritonserver on PATH is the embedded one, as in an image.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hfx.cli import main
from hfx.deploy.deployment import open_deployment
from hfx.deploy.kubernetes import KEYS_FOLDER, TLS_FOLDER, Cluster, write
from hfx.deploy.options import Scale
from hfx.deploy.sizing import Signal, size
from hfx.manifest import read_manifest
from hfx.triton import liveness
from hfx.triton.server import Ports, choose_ports
from tests.rigs.checkpoints.reciting_generator import ENDLESS
from tests.rigs.clients.certificates import make_certificate
from tests.rigs.clients.generation_requests import TIMEOUT, Ask
from tests.rigs.servers.generation_server import DOORS, RECITAL
from tests.rigs.servers.local_triton import install
from tests.rigs.servers.serve_process import ServeProcess, infer, serving

pytestmark = pytest.mark.triton

ENCODER = "sentiment-fp32"
DRAIN, PRE_STOP = 15, 2
LEARNED = 0.7  # of preStop: then every proxy has learned that the pod ends
LENGTHY = {**ENDLESS, "max_tokens": 1500}  # more than the rest of preStop


@dataclass(frozen=True)
class Pod:
    """The written files, and the server that runs by them."""

    folder: Path
    spec: Any
    served: ServeProcess
    signals: tuple[Signal, ...]
    scrapes_url: str

    @property
    def container(self) -> Any:
        [container] = self.spec["containers"]
        return container

    @property
    def http_url(self) -> str:
        return self.served.http_url

    @property
    def grpc_url(self) -> str:
        return str(self.served.ready["grpc_url"])

    @property
    def job(self) -> Any:
        return yaml.safe_load((self.folder / "verify/job.yaml").read_text())


@pytest.fixture(scope="module")
def repository(many_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator and an encoder."""
    folder = tmp_path_factory.mktemp("models")
    for name in (RECITAL, ENCODER):
        for member in read_manifest(many_tasks / name / "hfx.json").folders:
            shutil.copytree(many_tasks / member, folder / member)
    return folder


@pytest.fixture(scope="module")
def pod(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A pod that runs until the last test, which ends it."""
    place = tmp_path_factory.mktemp("pod")
    (place / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as machine:
        for name, value in {**install(place / "opt"), "TMPDIR": str(place / "tmp")}.items():
            machine.setenv(name, value)
        with running(repository, place / "out", Cluster()) as pod:
            yield pod


@contextmanager
def running(repository: Path, output: Path, cluster: Cluster) -> Iterator[Pod]:
    deployment = open_deployment(repository, [RECITAL, ENCODER], drain=DRAIN)
    sizing = size(deployment, Scale(pre_stop=PRE_STOP), {})
    write(deployment, sizing, cluster, output)
    spec = yaml.safe_load((output / "manifests/deployment.yaml").read_text())["spec"]["template"]["spec"]
    scrapes = choose_ports(Ports(), "127.0.0.1").metrics
    with serving(repository, *server_options(spec["containers"][0]["args"]), "--scrape-port", str(scrapes)) as served:
        yield Pod(output, spec, served, sizing.signals, f"http://127.0.0.1:{scrapes}")


OPTIONS_OF_A_POD = (
    ("--host", "0.0.0.0"),
    ("--http-port", "8000"),
    ("--grpc-port", "8001"),
    ("--scrape-port", "8003"),
)


def server_options(arguments: list[str]) -> list[str]:
    """Return the options of `hfx serve` in a container's arguments, without those that this machine replaces."""
    assert arguments[:3] == ["hfx", "serve", "/models"]
    options = arguments[3:]
    for option, value in OPTIONS_OF_A_POD:
        at = options.index(option)
        assert options[at + 1] == value
        del options[at : at + 2]
    return options


def test_the_probes_metrics_and_verification_job_of_a_pod_succeed(
    pod: Pod, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for probe in ("startupProbe", "readinessProbe"):
        path = pod.container[probe]["httpGet"]["path"]
        with urllib.request.urlopen(pod.scrapes_url + path, timeout=TIMEOUT) as answer:
            assert answer.status == 200
    check_liveness(pod)

    assert infer(pod.http_url, ENCODER, "fine") and DOORS["HTTP infer"](pod, Ask(RECITAL, "a"))  # type: ignore[arg-type]
    with urllib.request.urlopen(f"{pod.scrapes_url}/metrics", timeout=TIMEOUT) as answer:
        lines = answer.read().decode().splitlines()
    for signal in pod.signals:
        for model in signal.models:
            assert any(line.startswith(f'{signal.metric.series}{{model="{model}"') for line in lines), (signal, model)

    [container] = pod.job["spec"]["template"]["spec"]["containers"]
    command = " ".join(container["args"]).replace("/models", str(repository))
    command = command.replace(f"http://{RECITAL}:8000", pod.http_url)
    code, said = main(command.split()[1:]), capsys.readouterr()
    assert code == 0 and all(f"{name}: " in said.out for name in (ENCODER, RECITAL)), said


def check_liveness(pod: Pod) -> None:
    """Check that the pod's liveness probe passes."""
    command = " ".join(pod.container["livenessProbe"]["exec"]["command"])
    command = command.replace("http://127.0.0.1:8003", pod.scrapes_url)
    copied_from = Path(liveness.__file__).parents[1]  # by the Dockerfile
    command = command.replace("/opt/hfx", str(copied_from))
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == (0, "healthy: by hfx serve\n"), done


def test_a_pod_with_keys_and_tls_is_probed_scraped_and_verified(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of this test stand for the Secrets, with the entries that the manifests use."""
    machine = install(tmp_path / "opt")
    keys, tls = tmp_path / "keys", tmp_path / "tls"
    certificate, key = make_certificate(tmp_path, "server")
    files = {keys / "keys": "one-key-of-the-tests\nother-key-of-the-tests\n", keys / "token": "other-key-of-the-tests"}
    files |= {tls / "tls.crt": Path(certificate).read_text(), tls / "tls.key": Path(key).read_text()}
    files |= {tls / "ca.crt": Path(certificate).read_text()}
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    folders = {KEYS_FOLDER: str(keys), TLS_FOLDER: str(tls)}
    cluster = Cluster(api_keys="k", tls="t")
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    deployment = open_deployment(repository, [RECITAL, ENCODER], drain=DRAIN)
    write(deployment, size(deployment, Scale(), {}), cluster, tmp_path / "written")
    written = tmp_path / "written/manifests/deployment.yaml"
    [container] = yaml.safe_load(written.read_text())["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        if variable["name"].startswith("HFX_"):
            monkeypatch.setenv(variable["name"], placed(variable["value"], folders))
    with running(repository, tmp_path / "out", cluster) as pod:
        assert pod.http_url.startswith("https://")
        for path in ("/health", "/metrics"):
            with urllib.request.urlopen(pod.scrapes_url + path, timeout=TIMEOUT) as answer:
                assert answer.status == 200
        check_liveness(pod)
        [container] = pod.job["spec"]["template"]["spec"]["containers"]
        command = placed(" ".join(container["args"]), {**folders, "/models": str(repository)})
        command = command.replace(f"https://{RECITAL}:8000", pod.http_url)
        code, said = main(command.split()[1:]), capsys.readouterr()
        assert code == 0 and all(f"{name}: " in said.out for name in (ENCODER, RECITAL)), said
        (keys / "token").write_text("no-key-of-the-tests")
        code, said = main(command.split()[1:]), capsys.readouterr()
        assert code != 0 and "API key" in said.err, said


def placed(text: str, folders: dict[str, str]) -> str:
    """Return `text` with paths of this machine instead of paths in a pod."""
    for inside, outside in folders.items():
        text = text.replace(inside, outside)
    return text


def test_a_pod_that_ends_under_load_fails_no_request(pod: Pod) -> None:
    """The pod ends as a kubelet ends it: preStop, while proxies still send; SIGTERM; a kill after the grace period."""
    learned, under_way, answered = threading.Event(), set[threading.Thread](), list[str]()

    def send(door: str, ask: Callable[[], object]) -> None:
        while not learned.is_set():
            under_way.add(threading.current_thread())
            assert ask()
            answered.append(door)
            under_way.discard(threading.current_thread())

    asks: dict[str, Callable[[], object]] = {
        door: lambda door=door: DOORS[door](pod, Ask(RECITAL, "a", LENGTHY)).text  # type: ignore[misc]
        for door in DOORS
    }
    asks |= {f"{ENCODER} {number}": lambda: infer(pod.http_url, ENCODER, "fine") for number in range(4)}
    with ThreadPoolExecutor(len(asks)) as pool:
        callers = [pool.submit(send, door, ask) for door, ask in asks.items()]
        time.sleep(1)
        began = time.monotonic()
        threading.Timer(LEARNED * PRE_STOP, learned.set).start()
        subprocess.run(pod.container["lifecycle"]["preStop"]["exec"]["command"], check=True)
        open_at_the_end = len(under_way)
        pod.served.running.terminate()
        code = pod.served.running.wait(pod.spec["terminationGracePeriodSeconds"] - (time.monotonic() - began))
        for caller in callers:
            caller.result()
    assert open_at_the_end, "the load was over before SIGTERM"
    assert set(answered) == set(asks)
    assert (code, pod.served.end()) == (0, 0), pod.served.words
