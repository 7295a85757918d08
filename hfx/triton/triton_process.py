"""A real tritonserver as a child process, from the nvidia-pytriton wheel or another installation (installation.py).

`with TritonProcess("model_repository") as server: server.grpc_url` starts it, waits until every model answers, and
leaves nothing behind. It serves a private copy of the repository (models.py) and restarts in well under a second.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from hfx.errors import ServerError
from hfx.front.settings import Tls
from hfx.process import end, kill
from hfx.triton import process
from hfx.triton.arguments import grpc_tls_arguments, server_arguments
from hfx.triton.installation import PYTHON, Installation, find_wheel
from hfx.triton.liveness import Death, socket_url
from hfx.triton.loaded_models import OPEN_REQUESTS, LoadedModels, statistics
from hfx.triton.log import (
    CrashedAtStart,
    LogRotation,
    PortLost,
    ServerLog,
    SocketRefused,
    StartFailed,
    end_server,
    start_failure,
    wait_until_ready,
)
from hfx.triton.models import check_gpu, copy_checked, python_processes, read_settled, select_models
from hfx.triton.one_hop import Steps, prepare_encoders
from hfx.triton.reload import Served
from hfx.triton.server import Server, choose_ports, is_ready, port_taken
from hfx.triton.workspace import Workspace, check_shared_memory, region_prefix, remove_regions, sweep

LAUNCHES = 3  # for one start: a port can be lost in between, and Triton 2.51 sometimes crashes while it loads models
HTTP_SOCKET = "http"
STOP_MARGIN_SECONDS = 5.0  # Triton checks once a second whether it may end


@dataclass(eq=False)
class TritonProcess(Server):
    """The tritonserver of an installation; `options` are further arguments of it, `grpc_tls` encrypts gRPC.

    `find` finds the installation (default: the wheel). With `steps` "native", the steps of an encoder become one native
    model if possible; with "python", they remain as published.

    With `private`, HTTP listens at a socket in the server's own folder, which only this user can reach, and single
    models can be replaced; `http_url` then has the form of liveness.socket_url. If this Triton can't listen at a
    socket, `private` becomes False, with a line to `warn`. With a `budget` of bytes for loaded models, the server
    starts with the models that fit.

    Raises ServerError if there is no Triton, a port is taken, a model does not load (with the reason), or the server is
    not ready in time. Must be started from the main thread.
    """

    _: KW_ONLY
    private: bool = False
    steps: Steps = "native"
    options: Sequence[str] = ()
    grpc_tls: Tls | None = None
    find: Callable[[], Installation] = find_wheel
    budget: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._installation: Installation | None = None
        self._workspace: Workspace | None = None
        self._loaded: LoadedModels | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._backends = Path()
        self._kept_log: Path | None = None
        self._rotation: LogRotation | None = None

    # Addresses, and what is running

    @property
    def installation(self) -> Installation:
        """The installation of Triton. Raises ServerError if there is none."""
        if self._installation is None:
            self._installation = self.find()
        return self._installation

    @property
    def http_url(self) -> str:
        """The URL of HTTP: `http://HOST:PORT`, or the URL of a socket."""
        return socket_url(self.folder / HTTP_SOCKET) if self.private else super().http_url

    @property
    def grpc_url(self) -> str:
        """The address of the gRPC API: `HOST:PORT`, or `grpcs://HOST:PORT` if it is encrypted."""
        return f"grpcs://{super().grpc_url}" if self.grpc_tls else super().grpc_url

    @property
    def pid(self) -> int:
        """The process id of tritonserver, also its process group. Raises ServerError if it is not running."""
        return self._running().pid

    @property
    def folder(self) -> Path:
        """The server's own folder, which no other user can enter. It exists only while the server runs."""
        assert self._workspace is not None
        return self._workspace.folder

    @property
    def log(self) -> Path:
        """Triton's log file, which is deleted with the server, but remains if a start fails."""
        return self.folder / "triton.log"

    @property
    def loaded(self) -> LoadedModels:
        """The models that are served. Raises ServerError if the server is not running."""
        if self._loaded is None:
            raise _not_running()
        return self._loaded

    @property
    def replaceable(self) -> LoadedModels | None:
        """The models, if single ones can be replaced, as in a private server; otherwise None."""
        return self._loaded if self.private else None

    @property
    def revision(self) -> int:
        """A number that changes with the set of the models that are served."""
        return self.loaded.revision

    def stubs(self) -> dict[str, list[int]]:
        """Return the live Python processes: model instance (e.g. `NAME_tokenize_0_0`) -> pids."""
        return process.stubs(self.pid)

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Triton's statistics by model name, e.g. `["NAME_net"]["execution_count"]`; times in nanoseconds.

        Triton counts a request shortly after it has sent the answer.
        """
        return statistics(self.http_url)

    def deaths(self) -> list[Death]:
        """Return the deaths of the server's processes, with their reasons."""
        code = self._running().poll()
        if code is not None:
            return [Death((), process.server_death(code))]
        return self.loaded.deaths()

    def _exposure(self) -> str:
        asks_certificates = self.grpc_tls is not None and self.grpc_tls.client_authorities
        users = "" if asks_certificates else f"Listening at {self.host}: all that reach this port can use the models. "
        return f"{users}{self.installation.risk}".strip()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise _not_running()
        return self._process

    # Starting

    def start(self) -> None:
        """Start the server, and return when every model answers."""
        if self._process is not None:
            raise ServerError("This server is running already.", "Call stop() first.")
        installation = self.installation
        try:
            folders = [self.repository / name for name in select_models(self.repository, self.models)]
            sweep()
            self._workspace = Workspace()
            read_settled(self._copy_models, lambda: folders)
            backend = installation.hfx_onnxruntime(self.device)
            native = self.steps == "native"
            kept = prepare_encoders(self.folder / "repository", backend, native, device=self.device)
            for name, reason in kept.items():
                self.progress(f"{name} is served by its Python steps: {reason}")
            self._backends = installation.backend_directory(self.folder / "backends", self.device)
            (self.folder / "cwd").mkdir()  # empty, as stubs import from their working directory
            self._loaded = LoadedModels(self._served(), self.repository, self.models, self.device)
            if self.budget and self.private:
                self._loaded.residency.unloaded.update(self._loaded.residency.names())
            self._launch_those_that_load()
            if self.budget and self.private:
                self._loaded.load_in_turn(self.budget, self.progress, self._leave_out)
            self._rotation = LogRotation(self.log)
        except BaseException as error:
            folder = self._workspace.folder if self._workspace else tempfile.gettempdir()
            self._abandon(error)
            if isinstance(error, OSError):
                fix = "Give it room, or set TMPDIR to another folder."
                raise ServerError(f"Can't prepare {folder}: {error}.", fix) from error
            raise

    def _copy_models(self) -> None:
        if self.device == "gpu":
            check_gpu(self.repository, select_models(self.repository, self.models))
        copy_checked(self.repository, self.models, self.check, self.folder / "repository")

    def restart(self) -> None:
        """Kill the server with its stubs and start it again at the same ports, from the same files.

        Raises ServerError if it does not start; another restart may succeed.
        """
        end(self._running(), grace=0)  # a reload in progress then stops waiting for Triton
        self._kept_log = None
        try:
            with self.loaded.changing():
                self._launch(lambda line: None)
        except PortLost as lost:
            raise port_taken(lost.use, self.host, lost.port, "another program took it meanwhile") from None
        except (StartFailed, ServerError) as failure:
            error = failure.error if isinstance(failure, StartFailed) else failure
            self._kept_log = self._if_named(error)
            if isinstance(failure, StartFailed) and failure.crashed:
                raise CrashedAtStart(error.message, error.fix) from None
            raise error from None

    def _launch_those_that_load(self) -> None:
        served = self._served()
        while True:
            try:
                return self._launch_private_or_not()
            except StartFailed as failed:
                broken = served.with_members(failed.models)
                if self.strict or self.models or not broken or broken >= {folder.name for folder in served.folders()}:
                    raise failed.error from None
                self.warn(f"{failed.error.message}\nThe other models are served.")
                for folder in broken:
                    shutil.rmtree(served.repository / folder)

    def _leave_out(self, name: str, error: ServerError) -> None:
        """Serve without `name`, which does not load, if other models remain; otherwise raise `error`."""
        if self.strict or self.models or len(self.loaded.residency.names()) == 1:
            raise error
        self.warn(f"{error.message}\nThe other models are served.")
        self.loaded.unload(name)

    def _launch_private_or_not(self) -> None:
        try:
            return self._launch_on_free_ports()
        except SocketRefused as refused:  # serve without model control: over TCP, every local user could control models
            self.private = False
            self.loaded.residency.unloaded.clear()
            self.warn(
                f"Triton does not listen at a socket ({refused}); its own HTTP is at {self.inner_host} instead. Dead "
                "models are replaced by restarts of the whole server, and none is reloaded, or loaded on demand."
            )
            return self._launch_on_free_ports()

    def _launch_on_free_ports(self) -> None:
        for attempt in range(1, LAUNCHES + 1):
            self.ports = choose_ports(self.requested_ports, self.host)
            try:
                return self._launch(self.progress)
            except PortLost as lost:
                if getattr(self.requested_ports, lost.use) or attempt == LAUNCHES:
                    raise port_taken(lost.use, self.host, lost.port, "another program took it") from None
            except StartFailed as failed:
                if not failed.crashed or attempt == LAUNCHES:
                    raise

    def _launch(self, progress: Callable[[str], None]) -> None:
        """Start the server, and return when every model answers. After an error, no process of it remains.

        Raises PortLost, SocketRefused, StartFailed, or ServerError if it takes longer than `timeout` seconds.
        """
        assert self._workspace is not None
        remove_regions(self.folder)  # left by a server that crashed
        in_python = {PYTHON, self.installation.hfx_onnxruntime(self.device)}
        check_shared_memory(self.folder, python_processes(self.folder / "repository", self.device, in_python))
        (self.folder / HTTP_SOCKET).unlink(missing_ok=True)
        environment = {
            **self.installation.environment,
            "HFX_OPEN_REQUESTS": str(self.folder / OPEN_REQUESTS),
            "ORT_DISABLE_TELEMETRY": "1",  # for the runtime in merged encoders
        }
        folder, inherited = self.folder / "cwd", [self._workspace.lock]
        log = ServerLog(self.log, len(self._served().folders()))
        running = process.spawn(self._command(), self.log, environment, folder, inherit=inherited, keep_modes=True)
        try:
            is_serving = self._wait(running, log, progress)
        except BaseException:
            end(running, grace=0)
            raise
        if not is_serving:
            code = running.poll()
            end(running, grace=0)
            paths = {str(self.folder / "repository"): str(self.repository)}  # the server's path -> the user's
            raise start_failure(log, asdict(self.ports), paths, code, str(self.installation.backends))
        self._process = running
        self.loaded.begin(self.pid)

    def _wait(self, running: subprocess.Popen[bytes], log: ServerLog, progress: Callable[[str], None]) -> bool:
        """Wait for the start, and return whether the server came to serve."""

        def has_failed() -> bool:
            return running.poll() is not None or bool(log.taken_port(self.ports.metrics))

        def is_serving() -> bool:
            # Metrics start last, and the log says "started" even if their port is taken. Only the socket is proof.
            return is_ready(self.http_url) and process.listens(running.pid, self.ports.metrics)

        return wait_until_ready(log, is_serving, has_failed, self.timeout, progress)

    def _command(self) -> list[str]:
        ports = self.ports
        return [
            str(self.installation.binary),
            *server_arguments(
                str(self.folder / "repository"),
                self.device,
                self.timeout,
                self.exit_timeout,
                controlled=self.private,
                load=self.loaded.residency.to_load(),
            ),
            f"--backend-directory={self._backends}",
            *self.installation.arguments,
            # Relative to the server's own folder `cwd`: the address of a socket has 107 bytes at most.
            f"--http-address={f'unix:../{HTTP_SOCKET}' if self.private else self.inner_host}",
            f"--http-port={ports.http}",
            f"--grpc-address={self.host}",
            f"--grpc-port={ports.grpc}",
            f"--metrics-address={self.inner_host}",
            f"--metrics-port={ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={region_prefix(self.folder)}",
            *(grpc_tls_arguments(**asdict(self.grpc_tls)) if self.grpc_tls else ()),
            *self.options,
        ]

    def _served(self) -> Served:
        backend = self.installation.hfx_onnxruntime(self.device)
        return Served(self.folder, self.http_url, self.timeout, backend, self.steps == "native", self.device)

    def _abandon(self, error: BaseException) -> None:
        """Clean up after a start that failed. The log remains if the error names its path."""
        if self._process is not None:
            end(self._process, grace=0)
        if self._workspace is not None:
            self._workspace.remove(keep=self._if_named(error))
        self._process = self._loaded = self._workspace = None

    def _if_named(self, error: BaseException) -> Path | None:
        """Return the path of the log if `error` names it, otherwise None."""
        return self.log if str(self.log) in str(error) else None

    # Stopping

    def stop(self) -> bool:
        """End the server and remove its files.

        Returns False if some requests had not finished after `exit_timeout` seconds. Also returns False if a part of
        the server is dead: such a server can't finish requests, and is killed.
        """
        try:
            return self._process is None or self._end(self._process)
        finally:
            self._process = None
            if self._rotation is not None:
                self._rotation.stop()
                self._rotation = None
            if self._loaded is not None:
                self._loaded.close()
            if self._workspace is not None:
                is_kept = self._loaded is not None and self._loaded.has_failed_to_swap
                self._workspace.remove(keep=self.log if is_kept else self._kept_log)
                self._workspace = self._loaded = None

    def kill(self) -> None:
        """End every process of the server at once, also while `stop` waits for it. Does nothing if there is none."""
        if self._process is not None:
            kill(self._process)

    def _end(self, running: subprocess.Popen[bytes]) -> bool:
        if self.fault():
            end(running, grace=0)
            return False
        self.loaded.disconnect()
        return end_server(
            running, ServerLog(self.log), self.exit_timeout + STOP_MARGIN_SECONDS, self.loaded.all_answered
        )


def _not_running() -> ServerError:
    return ServerError("This server is not running.", "Call start(), or use it in a `with` statement.")
