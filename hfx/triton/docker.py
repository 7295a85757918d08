"""Triton in a container: the `docker run` line for a repository, printed or run.

The image is hfx's own, built by docker/Dockerfile from an NGC release. It adds the packages that Python backends
import, and does not run as root. Each model folder is mounted by itself and read-only.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from hfx.errors import ServerError
from hfx.process import exit_reason
from hfx.releases import MINIMUM_SECURE, release
from hfx.triton import process
from hfx.triton.arguments import CONTAINER_MODELS, server_arguments
from hfx.triton.liveness import Death
from hfx.triton.log import LogRotation, ServerLog, end_server, load_error, wait_until_ready
from hfx.triton.models import select_models
from hfx.triton.server import Server, choose_ports, is_ready

HTTP, GRPC, METRICS = 8000, 8001, 8002  # inside the container
UNPRIVILEGED = "1000:1000"  # triton-server in NGC images
SHARED_MEMORY = "1g"
ENGINE_SECONDS = 15.0
STOP_MARGIN_SECONDS = 10.0


@dataclass(eq=False)
class DockerServer(Server):
    """A Triton server in a container.

    `triton` is an image tag such as 26.07 (releases.py). `image` names another image, which is used as it is; the name
    may have a digest. `options` are further arguments of tritonserver. `command()` is the whole `docker run` line.

    Raises ServerError if there is no docker, no engine or no such image (each with the line to run), if a port is
    taken, if a model does not load, or if the server is not ready in time.
    """

    _: KW_ONLY
    triton: str = MINIMUM_SECURE
    image: str = ""
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.release = release(self.triton)
        self._built_here = not self.image
        self.image = self.image or self.release.hfx_image(self.device)
        self.container = f"hfx-{secrets.token_hex(4)}"
        self.log = Path(tempfile.gettempdir()) / f"{self.container}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._rotation: LogRotation | None = None

    def _exposure(self) -> str:
        return f"Publishing at {self.host}: every machine that reaches it can use the models."

    def command(self) -> list[str]:
        """Return the `docker run` line. Docker chooses a port in place of each 0."""
        names = select_models(self.repository, self.models)
        # The user of this process, who can read the files, but not root.
        user = f"{os.getuid()}:{os.getgid()}" if os.getuid() else UNPRIVILEGED
        ports = (
            (f"{self.inner_host}:{self.ports.http}", HTTP),
            (f"{self.host}:{self.ports.grpc}", GRPC),
            (f"{self.inner_host}:{self.ports.metrics}", METRICS),
        )
        return [
            *("docker", "run", "--rm", "--name", self.container),
            *("--user", user, "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--shm-size", SHARED_MEMORY, "--ulimit", f"stack={process.STACK_BYTES}"),
            *(("--gpus", "all") if self.device == "gpu" else ()),
            *(part for outer, inner in ports for part in ("--publish", f"{outer}:{inner}")),
            *(part for name in names for part in ("--mount", _mount((self.repository / name).resolve(), name))),
            self.image,
            "tritonserver",
            *server_arguments(CONTAINER_MODELS, self.device, self.timeout, self.exit_timeout),
            *self.options,
        ]

    def image_command(self) -> list[str]:
        """Return the line that builds hfx's image in a checkout, or pulls another image."""
        if not self._built_here:
            return ["docker", "pull", self.image]
        return self.release.build_command(self.device, self.image)

    def start(self) -> None:
        """Start the container, and return when every model answers."""
        if self._process is not None:
            raise ServerError("This server is running already.", "Call stop() first.")
        self.ports = choose_ports(self.ports, self.host)
        command = self.command()
        self._check_engine(command)
        self._launch(command, self.progress)
        self._rotation = LogRotation(self.log)

    def deaths(self) -> list[Death]:
        """Return the death of the container, if it has ended. Deaths inside it are visible only to probes."""
        code = None if self._process is None else self._process.poll()
        return [] if code is None else [Death((), f"the container ended by itself ({exit_reason(code)})")]

    def restart(self) -> None:
        """Remove the container at once and start a new one at the same ports. May be called again after a failure."""
        self._remove(grace=0)
        self._launch(self.command(), lambda line: None)

    def stop(self) -> bool:
        """End the server and remove the container and its log.

        Returns False if not all requests finished within `exit_timeout`.
        """
        try:
            return self._remove(self.exit_timeout + STOP_MARGIN_SECONDS)  # docker passes SIGTERM on
        finally:
            if self._rotation is not None:
                self._rotation.stop()
            self.log.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the container at once, also while `stop` waits for it. Without a container this does nothing."""
        if self._process is not None:
            subprocess.run(["docker", "kill", self.container], capture_output=True, check=False)

    def _check_engine(self, command: Sequence[str]) -> None:
        line = shlex.join(command)
        if shutil.which("docker") is None:
            raise ServerError("docker is not installed.", f"Run this where it is, or serve --with embedded:\n{line}")
        if reason := _refusal(["docker", "version", "--format", "{{.Server.Version}}"]):
            raise ServerError(
                f"The docker engine does not answer: {reason}", f"Start it, or run this elsewhere:\n{line}"
            )
        if _refusal(["docker", "image", "inspect", self.image]):
            how = "Build it in a checkout of hfx" if self._built_here else "Get it"
            line = shlex.join(self.image_command())
            raise ServerError(f"There is no image {self.image}.", f"{how}:\n{line}")

    def _launch(self, command: Sequence[str], progress: Callable[[str], None]) -> None:
        log = ServerLog(self.log, len(select_models(self.repository, self.models)))
        running = self._process = process.spawn(command, self.log, os.environ, Path.cwd())

        def has_ended() -> bool:
            return running.poll() is not None

        try:
            if not wait_until_ready(log, lambda: is_ready(self.http_url), has_ended, self.timeout, progress):
                raise load_error(log, {CONTAINER_MODELS: str(self.repository)}, running.poll())
        except BaseException:
            self._remove(grace=0)
            raise

    def _remove(self, grace: float) -> bool:
        """End the container within `grace` seconds. Returns False if requests were still in flight."""
        if self._process is None:
            return True
        try:
            return end_server(self._process, ServerLog(self.log), grace)
        finally:
            self._process = None
            subprocess.run(["docker", "rm", "--force", self.container], capture_output=True, check=False)


def _mount(source: Path, name: str) -> str:
    """Return the value of a --mount option, which docker parses as a line of CSV."""
    field = f"source={source}"
    if any(character in field for character in ',"\n'):
        field = '"' + field.replace('"', '""') + '"'
    return f"type=bind,{field},target={CONTAINER_MODELS}/{name},readonly"


def _refusal(command: Sequence[str]) -> str:
    """Run `command`, and return its error message; empty if it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {ENGINE_SECONDS:g} s"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
