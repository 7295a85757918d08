"""Starts the process of the Batch API, restarts it when it dies, and locks its folder."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from hfx.batch.api.settings import ApiSettings
from hfx.batch.folder import storage
from hfx.errors import JobError, UsageError
from hfx.extras import install_command
from hfx.process import end, ends_with_parent, exit_reason, keep_running, spawn
from hfx.repository.staging import check_folder

API, FRONT, LOCK = "api.sock", "front.sock", "lock"
BACKLOG = 128
STOP_SECONDS = 5.0


class BatchProcess:
    """The process that serves the folder of `settings`.

    `url` is the socket that it listens on. `front` is a listening socket for the front, to which the process sends the
    lines of batches. `report` receives a line for each process that died. Raises UsageError if python-multipart is
    missing, and JobError for a folder that can't be used or that another `hfx serve` uses.
    """

    def __init__(self, settings: ApiSettings, report: Callable[[str], None]) -> None:
        if importlib.util.find_spec("python_multipart") is None:
            raise UsageError("--batch-dir needs python-multipart, which is not installed.", install_command("front"))
        folder = Path(settings.folder)
        check_folder(folder, "--batch-dir")
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        with ExitStack() as opened:  # closed if a later step fails
            self._lock = _locked(folder)
            opened.callback(os.close, self._lock)
            self._listener = opened.enter_context(_listening(folder / API))
            self.front = _listening(folder / FRONT)
            opened.pop_all()
        self._settings = replace(settings, listener=self._listener.fileno())
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="batches", daemon=True)
        self.url = f"unix://{quote(str(folder / API), safe='')}"

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
        for listener in (self._listener, self.front):
            listener.close()
        os.close(self._lock)

    def _supervise(self) -> None:
        """Restart the process until `stop`. The kernel kills it when this thread ends (see ends_with_parent)."""

        def report(reason: str) -> None:
            self._report(f"the process of batches died ({reason}); starting another one.")

        keep_running(self._run, self._stopping, report)

    def _run(self) -> str:
        """Run the process until it ends. Returns how it ended."""
        command = (sys.executable, "-P", "-m", "hfx.batch.api", self._settings.to_json())
        descriptors = [self._settings.listener]
        try:
            self._process = spawn(ends_with_parent(command), stdout=subprocess.DEVNULL, pass_fds=descriptors)
        except OSError as error:  # no process or no memory is left
            return f"it did not start: {error.strerror}"
        if self._stopping.is_set():
            self._process.terminate()
        return exit_reason(self._process.wait())


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises JobError if it is taken, or the disk has no locks."""
    with storage(folder / LOCK):
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


def _listening(path: Path) -> socket.socket:
    """A listening socket at `path`, bound through /proc/self/fd as a socket's path has at most 107 bytes."""
    with ExitStack() as opened, storage(path):
        listener = opened.enter_context(socket.socket(socket.AF_UNIX))
        parent = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            listener.bind(f"/proc/self/fd/{parent}/{path.name}")
            listener.listen(BACKLOG)
        finally:
            os.close(parent)
        opened.pop_all()
    return listener
