"""Starts the process of the Batch API in a locked folder, and restarts it when it dies or loses its folder."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import quote

from hfx.batch.api.settings import ApiSettings
from hfx.batch.folder import storage
from hfx.errors import JobError, UsageError
from hfx.extras import install_command
from hfx.process import end, ends_with_parent, exit_reason, keep_running, spawn
from hfx.repository.staging import check_folder

LOCK = "lock"
BACKLOG = 128
STOP_SECONDS = 5.0
CHECK_SECONDS = 1.0  # between two checks of the folder


class BatchProcess:
    """The process that serves the folder of `settings`.

    `url` is the socket that it listens on. `front` is a listening socket for the front, to which the process sends the
    lines of batches. Both sockets work without their files, so they outlive the folder. If the folder is removed, it is
    made again, and the process starts in it without files and batches. `report` receives a line for each process that
    had to be replaced. Raises UsageError if python-multipart is missing, and JobError for a folder that can't be used
    or that another `hfx serve` uses.
    """

    def __init__(self, settings: ApiSettings, report: Callable[[str], None]) -> None:
        if importlib.util.find_spec("python_multipart") is None:
            raise UsageError("--batch-dir needs python-multipart, which is not installed.", install_command("front"))
        self._folder = Path(settings.folder)
        check_folder(self._folder, "--batch-dir")
        with ExitStack() as opened:  # closed if a later step fails
            self._lock = _locked(self._folder)
            opened.callback(lambda: os.close(self._lock))
            self._listener, path = opened.enter_context(_listening(self._folder / "api.sock"))
            self.front, front_path = opened.enter_context(_listening(self._folder / "front.sock"))
            self._opened = opened.pop_all()
        self._settings = replace(settings, listener=self._listener.fileno(), front=front_path)
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="batches", daemon=True)
        self.url = f"unix://{quote(path, safe='')}"

    def start(self) -> None:
        """Start the process. It continues unfinished batches."""
        self._thread.start()

    def stop(self) -> None:
        """End the process, then release the folder. Unfinished batches continue when the process is started again."""
        self._stopping.set()
        if (running := self._process) is not None:
            end(running, STOP_SECONDS)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._opened.close()

    def _supervise(self) -> None:
        """Restart the process until `stop`. The kernel kills it when this thread ends (see ends_with_parent)."""

        def report(fault: str) -> None:
            self._report(f"the process of batches {fault}; starting another one.")

        keep_running(self._run, self._stopping, report)

    def _run(self) -> str:
        """Run the process until it ends, or end it when its folder is gone. Returns the reason for `report`."""
        command = (sys.executable, "-P", "-m", "hfx.batch.api", json.dumps(asdict(self._settings)))
        descriptors = [self._settings.listener]
        try:
            if not self._has_folder():
                before, self._lock = self._lock, _locked(self._folder)
                os.close(before)
            self._process = running = spawn(ends_with_parent(command), stdout=subprocess.DEVNULL, pass_fds=descriptors)
        except OSError as error:  # no process or no memory is left
            return f"did not start: {error.strerror}"
        except JobError as error:
            return f"has no folder: {error.message.rstrip('.')}"
        if self._stopping.is_set():
            running.terminate()
        while self._has_folder():
            with suppress(subprocess.TimeoutExpired):
                return f"died ({exit_reason(running.wait(CHECK_SECONDS))})"
        end(running, STOP_SECONDS)
        return f"lost its folder: {self._folder / LOCK} was removed or replaced"

    def _has_folder(self) -> bool:
        """Return whether the folder has the file that this server has locked."""
        try:
            return os.path.samestat((self._folder / LOCK).stat(), os.fstat(self._lock))
        except OSError:
            return False


def _locked(folder: Path) -> int:
    """Make `folder`, and return a descriptor that holds its lock. Raises JobError, also if the lock is taken."""
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise JobError(
            f"{folder} can't be locked: {error.strerror}.",
            "Stop the other `hfx serve` of this folder, or give another --batch-dir on a disk with locks.",
        ) from error
    return descriptor


@contextmanager
def _listening(path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a listening socket, and the path at which other processes of this user can connect to it.

    The socket is bound at `path`, through /proc/self/fd because a socket's path has at most 107 bytes. Its file is then
    removed; a descriptor of the file is enough to connect.
    """
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as opened:
        with storage(path):
            parent = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, parent)
            path.unlink(missing_ok=True)
            listener.bind(f"/proc/self/fd/{parent}/{path.name}")
            listener.listen(BACKLOG)
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            opened.callback(os.close, file)
            path.unlink()
        yield listener, f"/proc/{os.getpid()}/fd/{file}"
