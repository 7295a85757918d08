"""The real tritonserver of the nvidia-pytriton wheel as a child process, for a laptop, a test or a CPU host.

`with EmbeddedServer("model_repository") as server: server.grpc_url` starts it, waits until every model answers, and
leaves nothing behind. It serves a private copy of the repository (models.py) and restarts in well under a second.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from hfx.errors import ServerError
from hfx.front.settings import Tls
from hfx.manifest import member_folders
from hfx.repository import models as catalogue
from hfx.repository.catalog import model_folders
from hfx.triton import process
from hfx.triton.arguments import grpc_tls_arguments, server_arguments
from hfx.triton.instances import Instances
from hfx.triton.liveness import Death, socket_url
from hfx.triton.log import ServerLog, end_server, load_error, wait_until_ready
from hfx.triton.log_rotation import LogRotation
from hfx.triton.models import answers_later, check_gpu, copy_models, select_models
from hfx.triton.process import exit_reason
from hfx.triton.reload import Served, Unsettled, manifest_text
from hfx.triton.server import OPTIONS, Server, choose_ports, entry_points, is_ready, port_taken, statistics
from hfx.triton.wheel import VERSION, Wheel, find_wheel, make_backend_directory
from hfx.triton.workspace import Workspace, region_prefix, remove_regions, sweep

LAUNCHES = 3  # of one start: a port can be lost meanwhile, and Triton 2.51 now and then crashes while it loads models
HTTP_SOCKET = "http"
OPEN_REQUESTS = "open_requests"  # a file for each process that counts its own
STOP_MARGIN_SECONDS = 5.0  # Triton checks once a second whether it may end


@dataclass(eq=False)
class EmbeddedServer(Server):
    """The tritonserver of the nvidia-pytriton wheel; `options` are further arguments of it, `grpc_tls` encrypts gRPC.

    With `private` its HTTP listens at a socket in its own folder, which only this user reaches, and single models can
    be swapped; `http_url` is then that of liveness.socket_url.

    Raises ServerError: no wheel, a port taken, a model that does not load (with the reason), not ready in time.
    Must be started from the main thread.
    """

    _: KW_ONLY
    private: bool = False
    options: Sequence[str] = ()
    grpc_tls: Tls | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._workspace: Workspace | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._instances = Instances(0)
        self._changing = threading.Lock()  # of the models that are loaded
        self._unsettled = ""  # why the server must be started again from its files
        self._kept_log: Path | None = None
        self._rotation: LogRotation | None = None

    @property
    def grpc_url(self) -> str:
        """`HOST:PORT` of the gRPC API, `grpcs://HOST:PORT` of an encrypted one."""
        return f"grpcs://{super().grpc_url}" if self.grpc_tls else super().grpc_url

    @property
    def pid(self) -> int:
        """The process id of tritonserver, also its process group; ServerError when it is not running."""
        return self._running().pid

    def _exposure(self) -> str:
        return (
            f"Listening at {self.host}: all that reach this machine can use the models. The embedded tritonserver "
            f"{VERSION} lacks the security fixes since 2025; use --with docker instead."
        )

    def start(self) -> None:
        """Start and return when every model answers."""
        if self._process is not None:
            raise ServerError("This server is running already.", "Call stop() first.")
        wheel = find_wheel()
        left_out = {folder for name in self.without for folder in member_folders(name)}
        names = [name for name in select_models(self.repository, self.models) if name not in left_out]
        if self.device == "gpu":
            check_gpu(self.repository, names)
        sweep()
        self._workspace = Workspace()
        try:
            copy_models(self.repository, names, self._workspace.folder / "repository")
            make_backend_directory(self._workspace.folder / "backends", wheel, _python_based_backends())
            (self._workspace.folder / OPEN_REQUESTS).mkdir()
            (self._workspace.folder / "cwd").mkdir()  # stubs import from their working directory: nothing is there
            self._launch_those_that_load(wheel)
            self._rotation = LogRotation(self.log)
        except BaseException as error:
            folder = self.folder
            self._abandon(error)
            if isinstance(error, OSError):
                fix = "Give it room, or set TMPDIR to another folder."
                raise ServerError(f"Can't prepare {folder}: {error}.", fix) from error
            raise

    def stop(self) -> bool:
        """End the server and remove all it left; False: not all requests had finished after `exit_timeout` seconds.

        False too for a server of which a part is dead: it can't finish anything, and is killed.
        """
        try:
            return self._process is None or self._end(self._process)
        finally:
            self._process = None
            if self._rotation is not None:
                self._rotation.stop()
                self._rotation = None
            if self._workspace is not None:
                self._workspace.remove(keep=self._kept_log)
                self._workspace = None

    def _end(self, running: subprocess.Popen[bytes]) -> bool:
        if self.fault():
            process.end(running, grace=0)
            return False
        return end_server(running, ServerLog(self.log), self.exit_timeout + STOP_MARGIN_SECONDS, self._all_answered)

    def _all_answered(self) -> bool:
        """Whether no request is open that Triton does not count when it stops; False where that can't be known."""
        counts, folders = self.folder / OPEN_REQUESTS, model_folders(self.folder / "repository")
        later = [folder.name for folder in folders if answers_later(folder, self.device)]
        return self._instances.are_counted(later, counts) and self._instances.all_idle(counts)

    def kill(self) -> None:
        """End every process of the server at once, also while `stop` waits for it; harmless without one."""
        if self._process is not None:
            process.kill(self._process)

    @property
    def http_url(self) -> str:
        """Where HTTP is: `http://HOST:PORT`, or the URL of a socket."""
        return socket_url(self.folder / HTTP_SOCKET) if self.private else super().http_url

    def deaths(self) -> list[Death]:
        """The processes of the server that have died, and how.

        Triton never restarts a stub that died, and keeps saying that the model is ready.
        """
        code = self._running().poll()
        if code is not None:
            return [Death((), f"tritonserver died ({exit_reason(code)})")]
        return [Death((), self._unsettled)] if self._unsettled else self._instances.deaths()

    def can_swap(self, models: Sequence[str]) -> bool:
        """Whether `models` can be replaced while the others serve, without a caller left hanging.

        The requests inside a model that answers later, as a stream does, never end when its process dies (Triton 2.51).
        """
        repository = self.folder / "repository"
        if not self.private or not all((repository / model).is_dir() for model in models):
            return False
        later = [model for model in models if answers_later(repository / model, self.device)]
        return self._instances.have_no_open_request(later, self.folder / OPEN_REQUESTS)

    def others_serve(self, models: Sequence[str]) -> bool:
        """Whether a process of a model beside `models` runs."""
        return self._instances.run_beside(models)

    def swap(self, models: Sequence[str]) -> None:
        """Replace the processes of `models`, dead or not, while the others serve: 0.2 to 0.5 s for a small one.

        Raises ServerError with the reason when one does not load; it may be called again.
        """
        with self._changing:
            self._instances.kill(models)
            before = self._instances.forget(models)
            try:
                for model in models:
                    self._served().load(model)
            except ServerError:
                self._kept_log = self.log
                self._instances.restore(before)
                raise
            self._kept_log = None
            self._instances.note(models, before.values())

    # Models that are published anew

    def served(self) -> list[str]:
        """The models that are served, without the members of others."""
        return entry_points(self.http_url)

    def published(self, name: str) -> bytes:
        """The text of the manifest of `name` in the repository; empty for a model without one."""
        return manifest_text(self.repository, name)

    def changed(self) -> list[str]:
        """The models that are published otherwise than they are served; new ones too, unless `models` limits them."""
        copies = self.folder / "repository"
        names = [entry.name for entry in catalogue(self.repository) if entry.manifest]
        return [
            name
            for name in names
            if manifest_text(copies, name) != self.published(name)
            and (not self.models or name in self.models or (copies / name).is_dir())
        ]

    def reload(self, name: str) -> None:
        """Serve `name` as it is published now, new or in place of the one before, without a request that fails.

        Raises RepositoryError or ServerError with the reason when it does not load; the one before serves on then.
        """
        with self._changing:
            served = self._served()
            folders = {*served.members(name), *select_models(self.repository, [name])}
            before = self._instances.forget(folders)
            try:
                served.replace(self.repository, name)
            except Unsettled as error:
                self._unsettled = f"{name} was not loaded to the end ({error.message})"
            finally:
                self._instances.note(folders, before.values())
                self.revision += 1

    def unload(self, name: str) -> None:
        """Serve `name` no longer, once its requests are answered."""
        with self._changing:
            served = self._served()
            folders = served.members(name)
            self._instances.forget(folders)
            for folder in reversed(folders):  # an ensemble before its members
                served.unload(folder)
            self.revision += 1

    def restart(self) -> None:
        """Kill the server with its stubs and start it again at the same ports, from the same files.

        Raises ServerError when it does not start; another restart may succeed.
        """
        process.end(self._running(), grace=0)  # and with it what a reload waits for
        try:
            with self._changing:
                self._launch(find_wheel(), lambda line: None)
        except BaseException as error:
            process.end(self._running(), grace=0)
            if isinstance(error, _PortLostError):
                raise port_taken(error.use, self.host, error.port, "another program took it meanwhile") from None
            self._kept_log = self.log if str(self.log) in str(error) else None
            raise
        self._kept_log = None

    def stubs(self) -> dict[str, list[int]]:
        """The live Python processes: model instance (e.g. `NAME_tokenize_0_0`) -> pids."""
        return process.stubs(self.pid)

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Triton's statistics by model name, e.g. `["NAME_net"]["execution_count"]`; times in nanoseconds.

        Triton counts a request shortly after it has sent the answer.
        """
        return statistics(self.http_url)

    def _served(self) -> Served:
        return Served(self.folder, self.http_url, self.timeout)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("This server is not running.", "Call start(), or use it in a `with` statement.")
        return self._process

    @property
    def folder(self) -> Path:
        """Its own folder, which no other user can enter; only while it runs."""
        assert self._workspace is not None
        return self._workspace.folder

    @property
    def log(self) -> Path:
        """Triton's log file; it goes with the server, and is kept when a start fails."""
        return self.folder / "triton.log"

    def _command(self, wheel: Wheel) -> list[str]:
        ports = self.ports
        return [
            str(wheel.binary),
            *server_arguments(
                str(self.folder / "repository"), self.device, self.timeout, self.exit_timeout, controlled=self.private
            ),
            f"--backend-directory={self.folder / 'backends'}",
            f"--cache-directory={wheel.caches}",
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

    def _launch_those_that_load(self, wheel: Wheel) -> None:
        served = self._served()
        while True:
            self._failed: tuple[str, ...] = ()  # models, by the log of a start
            try:
                return self._launch_on_free_ports(wheel)
            except ServerError as error:
                broken = served.with_members(self._failed)
                if self.strict or self.models or not broken or broken >= {folder.name for folder in served.folders()}:
                    raise
                self.warn(f"{error.message}\nThe other models are served.")
                for folder in broken:
                    shutil.rmtree(served.repository / folder)

    def _launch_on_free_ports(self, wheel: Wheel) -> None:
        for attempt in range(1, LAUNCHES + 1):
            self.ports = choose_ports(self.requested_ports, self.host)
            try:
                return self._launch(wheel, self.progress)
            except _PortLostError as lost:
                if getattr(self.requested_ports, lost.use) or attempt == LAUNCHES:
                    raise port_taken(lost.use, self.host, lost.port, "another program took it") from None
            except _CrashError:
                if attempt == LAUNCHES:
                    raise

    def _launch(self, wheel: Wheel, progress: Callable[[str], None]) -> None:
        assert self._workspace is not None
        remove_regions(self.folder)  # of a server that crashed
        (self.folder / HTTP_SOCKET).unlink(missing_ok=True)
        log = ServerLog(self.log)
        running = self._process = process.spawn(
            self._command(wheel),
            self.log,
            wheel.environment() | {"HFX_OPEN_REQUESTS": str(self.folder / OPEN_REQUESTS)},
            self.folder / "cwd",
            inherit=[self._workspace.lock],
            keep_modes=True,
        )

        def has_failed() -> bool:
            return running.poll() is not None or bool(log.taken_port(self.ports.metrics))

        def is_serving() -> bool:
            # Metrics come last, and the log says "started" even when their port is taken: only the socket is proof.
            return is_ready(self.http_url) and process.listens(self.pid, self.ports.metrics)

        if not wait_until_ready(log, is_serving, has_failed, self.timeout, progress):
            self._fail(log)
        self._instances = Instances(self.pid)
        self._unsettled = ""

    def _fail(self, log: ServerLog) -> None:
        """Raise what the log says about a start that failed."""
        code = self._running().poll()
        process.end(self._running(), grace=0)
        log.read()
        self._failed = tuple(log.failures())
        port = log.taken_port(self.ports.metrics)
        if port:
            raise _PortLostError(next(use for use in OPTIONS if getattr(self.ports, use) == port), port)
        error = load_error(log, {str(self.folder / "repository"): str(self.repository)}, code)
        crashed = code is not None and code < 0 and not log.failures()
        raise _CrashError(error.message, error.fix) if crashed else error

    def _abandon(self, error: BaseException) -> None:
        """Clean up after a start that failed; the log stays when the error tells its path."""
        if self._process is not None:
            process.end(self._process, grace=0)
            self._process = None
        if self._workspace is not None:
            self._workspace.remove(keep=self.log if str(self.log) in str(error) else None)
            self._workspace = None


class _PortLostError(Exception):
    """Another process took a port between our look and Triton's bind."""

    def __init__(self, use: str, port: int) -> None:
        super().__init__(f"{use} port {port}")
        self.use = use
        self.port = port


class _CrashError(ServerError):
    """A signal ended Triton while it started, no model's fault."""


def _python_based_backends() -> dict[str, dict[str, Path]]:
    from hfx.python_backends.deploy import onnxruntime_files

    return {"onnxruntime": dict(onnxruntime_files())}
