"""One start of a tritonserver process: run, followed until every model answers, or explained when it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hfx.errors import ServerError
from hfx.triton import process
from hfx.triton.log import ServerLog, load_error, wait_until_ready
from hfx.triton.server import Ports, is_ready


class PortLost(Exception):
    """Another process took the `port` for `use` between the choice and Triton's bind."""

    def __init__(self, use: str, port: int) -> None:
        super().__init__(f"{use} port {port}")
        self.use = use
        self.port = port


class SocketRefused(Exception):
    """Triton can't listen for HTTP at a Unix socket; the message is its own."""


class StartFailed(Exception):
    """Triton did not start: `error` says why, `models` did not load, `crashed` when a signal ended it instead."""

    def __init__(self, error: ServerError, models: Sequence[str], crashed: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.models = tuple(models)
        self.crashed = crashed


@dataclass(frozen=True)
class Launch:
    """What is run: `command` in `folder`, with `environment` and the inherited descriptor `lock`, its output in `log`.

    It serves at `ports`, its HTTP at `http_url`; `paths` are folders that it names -> those of the user.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    lock: int
    log: Path
    ports: Ports
    http_url: str
    paths: Mapping[str, str]
    timeout: float

    def run(self, progress: Callable[[str], None]) -> subprocess.Popen[bytes]:
        """Start and return when every model answers; else nothing of it is left.

        Raises PortLost, SocketRefused, StartFailed, or ServerError when it takes longer than `timeout` seconds.
        """
        log = ServerLog(self.log)
        running = process.spawn(
            self.command, self.log, self.environment, self.folder, inherit=[self.lock], keep_modes=True
        )
        try:
            is_serving = self._wait(running, log, progress)
        except BaseException:
            process.end(running, grace=0)
            raise
        if not is_serving:
            code = running.poll()
            process.end(running, grace=0)
            raise self._failure(log, code)
        return running

    def _wait(self, running: subprocess.Popen[bytes], log: ServerLog, progress: Callable[[str], None]) -> bool:
        """Whether the server came to serve."""

        def has_failed() -> bool:
            return running.poll() is not None or bool(log.taken_port(self.ports.metrics))

        def is_serving() -> bool:
            # Metrics come last, and the log says "started" even when their port is taken: only the socket is proof.
            return is_ready(self.http_url) and process.listens(running.pid, self.ports.metrics)

        return wait_until_ready(log, is_serving, has_failed, self.timeout, progress)

    def _failure(self, log: ServerLog, code: int | None) -> Exception:
        """What the log says about a start that failed."""
        log.read()
        if reason := log.refused_socket():
            return SocketRefused(reason)
        if port := log.taken_port(self.ports.metrics):
            return PortLost(next(use for use, chosen in asdict(self.ports).items() if chosen == port), port)
        failures = log.failures()
        crashed = code is not None and code < 0 and not failures
        return StartFailed(load_error(log, self.paths, code), tuple(failures), crashed)
