"""A plain tritonserver starts on a repository during an export into it, and after that export was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from hfx.repository import lint, recover
from hfx.repository.staging import stagings
from hfx.triton.server import Ports, choose_ports
from tests.rigs.servers import installed_triton
from tests.rigs.servers.toy_models import write_toy

pytestmark = pytest.mark.triton

# Prints the folder where the model is built, once it is filled; lasts until stdin ends.
EXPORT = """
import errno, os, sys
from pathlib import Path
from hfx.repository import Staging
from tests.rigs.files.manifests import fill

def refused(*paths):  # what the kernel says at the edge of a mount
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

if sys.argv[2] == "inside":
    os.rename = refused
with Staging(Path(sys.argv[1]), "m") as staging:
    fill(staging.root)
    print(staging.path, flush=True)
    sys.stdin.read()
"""


def plain_server(repository: Path, folder: Path) -> tuple[int, list[str]]:
    """Start tritonserver on `repository` itself; return (status of its readiness, the models that are ready)."""
    wheel, ports = installed_triton.find(), choose_ports(Ports(0, 0, 0), "127.0.0.1")
    backends = wheel.backend_directory(folder / "backends")
    arguments = [
        *(str(wheel.binary), f"--model-repository={repository}", f"--backend-directory={backends}"),
        *("--model-control-mode=none", "--strict-readiness=true", "--disable-auto-complete-config"),
        *("--http-address=127.0.0.1", f"--http-port={ports.http}", "--allow-grpc=false", "--allow-metrics=false"),
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(arguments, env=dict(wheel.environment), stdout=log, stderr=log)
    try:
        while server.poll() is None:
            try:
                url = f"http://127.0.0.1:{ports.http}/v2"
                ready = httpx.get(f"{url}/health/ready").status_code
                index = httpx.post(f"{url}/repository/index", json={}).json()
                return ready, [model["name"] for model in index if model["state"] == "READY"]
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError((folder / "log").read_text())
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_a_plain_server_starts_despite_the_staging_folder_of_an_export(tmp_path: Path, place: str) -> None:
    repository = write_toy(tmp_path / "repository")
    clean = lint(repository)
    command = [sys.executable, "-c", EXPORT, str(repository), place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as export:
        assert export.stdout is not None
        staging = Path(export.stdout.readline().strip())
        assert staging.parent == (repository if place == "inside" else tmp_path)
        export.send_signal(signal.SIGKILL)
    assert stagings(repository) == [staging]
    assert lint(repository) == clean
    ready, models = plain_server(repository, tmp_path)
    assert ready == 200
    assert {"toy", "toy_tokenize"} <= set(models)
    assert recover(repository) == [f"deleted the abandoned staging folder {staging.name}"]
    assert stagings(repository) == []
