"""Serves a written archive on this machine: the embedded tritonserver with the arguments of AWS's container.

`--allow-sagemaker` listens on all addresses, and there is no option to change that. So the server runs in its own
network namespace (isolated.py), which is reachable only through 127.0.0.1:PORT. Two arguments differ from the
container's: the folder of the archive and the folder of Triton's backends. The wheel has no ONNX Runtime backend, so
hfx's backend replaces it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hfx.deploy.arch import this_arch
from hfx.deploy.bundle import OLDER
from hfx.deploy.sagemaker import isolated
from hfx.deploy.sagemaker.aws import PORT, server_arguments
from hfx.deploy.sagemaker.requests import containers
from hfx.errors import ServerError, UsageError
from hfx.process import end
from hfx.triton import process
from hfx.triton.installation import find_wheel
from hfx.triton.log import ServerLog, load_error, wait_until_ready
from hfx.triton.workspace import LOG, Workspace, region_prefix

START_SECONDS = 300.0
STOP_SECONDS = 30.0
PING_SECONDS = 2.0
PYTHON, ARCH = f"{sys.version_info.major}.{sys.version_info.minor}", this_arch()  # of the embedded server


@contextmanager
def serving(folder: Path, port: int = PORT, container: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Serve the archive of the output `folder` at 127.0.0.1:`port` while the block runs. Yields the process.

    `container` is the ContainerHostname, if there are several containers. Raises ServerError, and UsageError for a
    folder without an archive, for packages of another Python, and for a port that is in use.
    """
    variables, archive = _container(folder, container)
    workspace = Workspace()
    running: subprocess.Popen[bytes] | None = None
    try:
        with _listener(port) as listener:
            command = _command(workspace.folder, variables, archive)
            running = _launch(workspace, listener, command, variables)
            _wait(running, workspace.folder / LOG, listener.getsockname()[1])
            yield running
    finally:
        if running is not None:
            end(running, STOP_SECONDS)
        workspace.remove()


def _container(folder: Path, name: str) -> tuple[dict[str, str], Path]:
    """Return the environment variables of a container in create-model.json, and its archive."""
    try:
        body = json.loads((folder / "create-model.json").read_text("utf-8"))
        chosen = next(each for each in containers(body) if not name or each["ContainerHostname"] == name)
        return chosen["Environment"], folder / Path(chosen["ModelDataUrl"]).name
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration) as error:
        raise UsageError(
            f"{folder} has no container{f' {name!r}' if name else ''}: {error!r}.",
            "Give a folder that `hfx deploy sagemaker` wrote.",
        ) from error


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as error:
        raise UsageError(f"Port {port} of 127.0.0.1 is taken.", "Choose another one with --port.") from error


def _command(place: Path, variables: dict[str, str], archive: Path) -> list[str]:
    repository = place / "model"
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(repository, filter="data")
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UsageError(f"{archive} can't be unpacked: {error}.", "Write the folder again with --force.") from error
    _check_packages(repository)
    wheel = find_wheel()
    (place / "cwd").mkdir()
    return [
        str(wheel.binary),
        *server_arguments(variables, f"{repository}/"),
        *wheel.arguments,
        f"--backend-directory={wheel.backend_directory(place / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name={region_prefix(place)}",
    ]


def _check_packages(repository: Path) -> None:
    """Raise UsageError if the packages are for a Python or a processor other than this machine's, or are missing."""
    for manifest in repository.glob("*/hfx.json"):
        try:
            record = {**OLDER, **json.loads(manifest.read_text("utf-8"))["choices"]["bundle"]}
            python, arch = record["python"], record["arch"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{manifest.parent.name} in the archive has no packages: {error!r} in {manifest.name}.",
                "Write the folder again with --force.",
            ) from error
        if (python, arch) != (PYTHON, ARCH):
            raise UsageError(
                f"The archive is for Python {python} on {arch}, the server of this machine {PYTHON} on {ARCH}.",
                f"Write another one to try: --python {PYTHON} --arch {ARCH}, and another --output.",
            )


def _launch(
    workspace: Workspace, listener: socket.socket, command: list[str], variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    listener.set_inheritable(True)
    program = [sys.executable, "-I", isolated.__file__, str(listener.fileno()), str(PORT), *command]
    return process.spawn(
        program,
        workspace.folder / LOG,
        {**find_wheel().environment, **variables},
        workspace.folder / "cwd",
        inherit=[workspace.lock, listener.fileno()],
        keep_modes=True,
    )


def _wait(running: subprocess.Popen[bytes], path: Path, port: int) -> None:
    import httpx

    def is_ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/ping", timeout=PING_SECONDS).status_code == 200
        except httpx.HTTPError:
            return False

    log = ServerLog(path)
    if wait_until_ready(log, is_ready, lambda: running.poll() is not None, START_SECONDS, lambda line: None):
        return
    if running.poll() == isolated.NO_NAMESPACE:
        raise ServerError(
            "This machine allows no network namespaces, and the server would listen at every address without one.",
            "Allow them (kernel.unprivileged_userns_clone=1; docker run --security-opt seccomp=unconfined), or run "
            "AWS's image: docker run -p 127.0.0.1:8080:8080.",
        )
    raise load_error(log, {}, running.poll())
