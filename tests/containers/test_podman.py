"""The Deployment of `hfx deploy kubernetes` as a pod of podman (`podman kube play`), without a cluster.

podman 4.3 turns an emptyDir in memory into a folder on the disk that user 1000 can't write to, so the test mounts a
/dev/shm of this machine instead.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.containers.containers import answers, status, typed
from tests.containers.images import run
from tests.rigs.machine.waiting import wait_until

pytestmark = pytest.mark.container

CLAIM = "hfx-tests-models"


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's podman; the test is skipped if it is missing or does not run."""
    if shutil.which("podman") is None or shutil.which("catatonit") is None:  # catatonit: the process of a pod
        line = ["apt-get", "install", "--yes", "--no-install-recommends", "podman", "catatonit"]
        if subprocess.run(line, capture_output=True, check=False).returncode != 0:
            pytest.skip("podman and catatonit of Debian are not installed")
    # Its own limits are above those that a process without CAP_SYS_RESOURCE may give.
    limits = '["nofile=16384:16384", "nproc=16384:16384"]'
    (tmp_path / "containers.conf").write_text(f"[containers]\ndefault_ulimits = {limits}\n")
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    done = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"podman info: {done.stderr.strip()[-200:]}")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory that every user may write to."""
    with tempfile.TemporaryDirectory(prefix="hfx-tests-", dir="/dev/shm") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def test_the_pod_of_the_deployment_answers(podman: None, memory: Path, image: str, folder: Path) -> None:
    number = run("docker", "image", "inspect", "--format", "{{.Id}}", image).strip()
    typed(f"podman image exists {number} || docker save {image} | podman load --quiet", folder)
    run("podman", "image", "prune", "--force")  # images of earlier checkouts
    typed(f"hfx deploy kubernetes sentiment stories --output pod --claim {CLAIM}", folder)
    run("podman", "volume", "create", CLAIM)
    volume = run("podman", "volume", "inspect", "--format", "{{.Mountpoint}}", CLAIM).strip()
    shutil.copytree(folder / "model_repository", volume, dirs_exist_ok=True)
    manifest = folder / "pod/manifests/deployment.yaml"
    written = yaml.safe_load(manifest.read_text())
    [spec] = written["spec"]["template"]["spec"]["containers"]
    for volume in written["spec"]["template"]["spec"]["volumes"]:
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            volume["hostPath"] = {"path": str(memory), "type": "Directory"}
            del volume["emptyDir"]
    manifest.write_text(yaml.safe_dump(written))
    try:
        said = run("podman", "kube", "play", manifest)
        name = run("podman", "ps", "--format", "{{.Names}}", "--filter", "name=triton").split()[-1]
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        infrastructure = run("podman", "inspect", "--format", "{{.Pod}}", name).strip()
        [first] = run("podman", "ps", "--quiet", "--filter", f"pod={infrastructure}", "--filter", "name=-infra").split()
        address = run("podman", "inspect", "--format", form, first).strip()
        pod = SimpleNamespace(http_url=f"http://{address}:8000", grpc_url=f"{address}:8001")
        wait_until(lambda: status(f"{pod.http_url}/health") == 200, said + name)
        answers(pod)
        assert run("podman", "exec", name, "id", "-u").strip() == "1000"
        assert run("podman", "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", name).strip() == "true"
        assert run("podman", "exec", name, *spec["livenessProbe"]["exec"]["command"]).startswith("healthy")
    finally:
        subprocess.run(["podman", "kube", "down", manifest], capture_output=True, check=False)
        subprocess.run(["podman", "volume", "rm", "--force", CLAIM], capture_output=True, check=False)
