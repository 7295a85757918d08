"""Triton in a container: the `docker run` line for a repository, printed or run.

The image is hfx's own, built by docker/Dockerfile from an NGC release: it adds what Python backends import and does
not run as root. Each model folder is mounted by itself and read-only. This file must not know what the models are.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from hfx.errors import ServerError
from hfx.releases import MINIMUM_SECURE, release
from hfx.triton import http_api, process
from hfx.triton.arguments import CONTAINER_MODELS, server_arguments
from hfx.triton.farm import select_models
from hfx.triton.ports import choose_ports
from hfx.triton.server import Endpoints, Ports, check_device, check_host, is_loopback
from hfx.triton.startup import StartupLog, load_error

HTTP, GRPC, METRICS = 8000, 8001, 8002  # inside the container
UNPRIVILEGED = "1000:1000"  # triton-server in NGC images
SHARED_MEMORY = "1g"
POLL_SECONDS = 0.1
ENGINE_SECONDS = 15.0
STOP_MARGIN_SECONDS = 10.0


class DockerServer:
    """A Triton server in a container that ends with this process; a context manager.

    `triton` is an image tag such as 26.07 (releases.py), `image` an image to use as it is (with a digest, if you
    give one). The other parameters are EmbeddedServer's. `command()` is the whole `docker run` line.

    Raises ServerError: no docker, no engine, no such image (each with the line to run), a port taken, a model that
    does not load, not ready in time.
    """

    def __init__(
        self,
        repository: str | Path,
        *,
        device: str = "cpu",
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        models: Sequence[str] = (),
        timeout: float = 300.0,
        exit_timeout: int = 10,
        triton: str = MINIMUM_SECURE,
        image: str = "",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.repository = Path(repository)
        self.device = check_device(device)
        self.host = check_host(host)
        self.wanted_ports = Ports(http_port, grpc_port, metrics_port)
        self.models = tuple(models)
        self.timeout = timeout
        self.exit_timeout = exit_timeout
        self.release = release(triton)
        self.image = image or f"hfx-triton:{self.release.tag}-{self.device}"
        self._built_here = not image
        self.container = f"hfx-{secrets.token_hex(4)}"
        self.log = Path(tempfile.gettempdir()) / f"{self.container}.log"
        self._progress = progress or (lambda line: None)
        self._endpoints = Endpoints(self.host, self.wanted_ports)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        """`http://HOST:PORT` of the HTTP API."""
        return self._endpoints.http_url

    @property
    def grpc_url(self) -> str:
        """`HOST:PORT` of the gRPC API, as clients take it."""
        return self._endpoints.grpc_url

    @property
    def metrics_url(self) -> str:
        """`http://HOST:PORT/metrics`, Prometheus text."""
        return self._endpoints.metrics_url

    @property
    def exposure(self) -> str:
        """A warning when others than this machine can reach the server, else an empty string."""
        return "" if is_loopback(self.host) else f"Publishing at {self.host}: whoever reaches it can use the models."

    def command(self) -> list[str]:
        """The `docker run` line; ports that were given as 0 are chosen now."""
        self._endpoints = Endpoints(self.host, choose_ports(self._endpoints.ports, self.host))
        names = select_models(self.repository, self.models)
        return [
            *("docker", "run", "--rm", "--name", self.container),
            *("--user", _user(), "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--shm-size", SHARED_MEMORY, "--ulimit", f"stack={process.STACK_BYTES}"),
            *(("--gpus", "all") if self.device == "gpu" else ()),
            *self._published(),
            *(part for name in names for part in ("--mount", _mount((self.repository / name).resolve(), name))),
            self.image,
            "tritonserver",
            *server_arguments(CONTAINER_MODELS, self.device, self.timeout, self.exit_timeout),
        ]

    def _published(self) -> list[str]:
        ports = self._endpoints.ports
        pairs = ((ports.http, HTTP), (ports.grpc, GRPC), (ports.metrics, METRICS))
        return [part for outer, inner in pairs for part in ("--publish", f"{self.host}:{outer}:{inner}")]

    def image_command(self) -> list[str]:
        """The line that gets the image: built in a checkout of hfx, or pulled where it is not hfx's."""
        if not self._built_here:
            return ["docker", "pull", self.image]
        arguments = (f"BASE={self.release.image}", f"DEVICE={self.device}")
        options = [part for argument in arguments for part in ("--build-arg", argument)]
        return ["docker", "build", "--file", "docker/Dockerfile", *options, "--tag", self.image, "."]

    def start(self) -> None:
        """Start and return when every model answers."""
        if self._process is not None:
            raise ServerError("This server is running already.", "Call stop() first.")
        command = self.command()
        self._check_engine(command)
        self._launch(command, self._progress)

    def fault(self) -> str:
        """How the container ended; an empty string while it runs. What happens inside only canaries see."""
        code = None if self._process is None else self._process.poll()
        return "" if code is None else f"the container ended by itself ({process.exit_reason(code)})"

    def restart(self) -> None:
        """Remove the container at once and start a new one at the same ports; may be called again when it fails."""
        self._remove(grace=0)
        self._launch(self.command(), lambda line: None)

    def stop(self) -> bool:
        """End the server and remove the container and its log; False: not all requests finished in `exit_timeout`."""
        try:
            return self._remove(self.exit_timeout + STOP_MARGIN_SECONDS) == 0  # docker passes SIGTERM on
        finally:
            self.log.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the container at once, also while `stop` waits for it; harmless without one."""
        if self._process is not None:
            subprocess.run(["docker", "kill", self.container], capture_output=True, check=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

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

    def _launch(self, command: Sequence[str], say: Callable[[str], None]) -> None:
        log = StartupLog(self.log)
        self._process = process.spawn(command, self.log, os.environ, Path.cwd())
        try:
            self._wait_until_ready(self._process, log, say)
        except BaseException:
            self._remove(grace=0)
            raise

    def _wait_until_ready(self, running: subprocess.Popen[bytes], log: StartupLog, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + self.timeout
        while not http_api.is_ready(self.http_url):
            log.read()
            if line := log.progress():
                say(line)
            if running.poll() is not None or log.has_given_up():
                raise load_error(log, {CONTAINER_MODELS: str(self.repository)}, running.poll())
            if time.monotonic() > deadline:
                raise ServerError(
                    f"Triton was not ready after {self.timeout:g} s. Its last words:\n{log.tail()}",
                    f"Give it more time, or look for the reason in {self.log}.",
                )
            time.sleep(POLL_SECONDS)

    def _remove(self, grace: float) -> int:
        """End the container within GRACE seconds; returns its exit code, 0 when there is none."""
        if self._process is None:
            return 0
        try:
            return process.end(self._process, grace)
        finally:
            self._process = None
            subprocess.run(["docker", "rm", "--force", self.container], capture_output=True, check=False)


def _user() -> str:
    """The user that owns the files here, for it can read them; never root."""
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() else UNPRIVILEGED


def _mount(source: Path, name: str) -> str:
    """A --mount value; docker reads it as a line of CSV."""
    field = f"source={source}"
    if any(character in field for character in ',"\n'):
        field = '"' + field.replace('"', '""') + '"'
    return f"type=bind,{field},target={CONTAINER_MODELS}/{name},readonly"


def _refusal(command: Sequence[str]) -> str:
    """What COMMAND said when it failed; an empty string when it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {ENGINE_SECONDS:g} s"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
