"""Commands to a running `hfx serve` from another process of its user.

They list the served models, reload and unload models and, from the server's own front, load and release models on
demand and get the table of models.

A command and its answer are one line of JSON each. They are sent over a Unix socket in the server's own folder, which
only its user can enter.
"""

from __future__ import annotations

import json
import os
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hfx.errors import HfxError, ServerError, ServerUnreachable
from hfx.triton.liveness import connect_socket
from hfx.triton.loaded_models import LoadedModels
from hfx.triton.workspace import PREFIX

SOCKET = "commands"
STATUS_SECONDS = 5.0  # for all servers together, as the requests are sent at the same time
WATCH_SECONDS = 1.0
# If the files of a model that did not load have not changed for this long, they count as completely copied, and the
# model is loaded again.
STILL_SECONDS = 2.0


Files = frozenset[tuple[str, int, int]]


@dataclass(frozen=True)
class Outcome:
    """The outcome for a model: `reloaded`, `added`, `unchanged`, `unloaded`, or `failed` with a `reason`."""

    model: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class FilesSeen:
    """The files of a model that did not load.

    `tried` are the files at the last attempt, and `files` the latest ones, which have not changed `since`
    (time.monotonic).
    """

    tried: Files
    files: Files
    since: float


class Commands:
    """Carries out commands on the models `loaded`, and reports each change with a line to `report`."""

    def __init__(self, loaded: LoadedModels, report: Callable[[str], None]) -> None:
        self._loaded = loaded
        self._report = report
        self.path = loaded.folder / SOCKET
        self._passed_over: dict[str, bytes] = {}  # manifests that did not load, or that a command unloaded
        self._incomplete: dict[str, FilesSeen] = {}  # the files of models that did not load
        self._reasons: dict[str, str] = {}  # why models did not load, as reported
        self._not_loaded: set[str] = set()  # models whose last load on demand failed
        folder = os.open(loaded.folder, os.O_PATH)
        try:  # with the folder's descriptor, as a socket's path has at most 107 bytes
            self._listener = _Listener(f"/proc/self/fd/{folder}/{SOCKET}", self._carry_out)
        finally:
            os.close(folder)
        threading.Thread(target=self._listener.serve_forever, name="commands", daemon=True).start()

    def watch(self) -> None:
        """Start a thread that reloads models when they are published again, and adds new models."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with suppress(HfxError, OSError):  # the repository or the server is not available
                for name in self._loaded.changed():
                    if self._passed_over.get(name) != self._loaded.published(name) or self._is_copied(name):
                        self._reload(name)

    def _is_copied(self, name: str) -> bool:
        """Return whether a model that did not load has got other files, which have not changed for STILL_SECONDS."""
        seen = self._incomplete.get(name)
        if seen is None:
            return False
        now, files = time.monotonic(), files_of(self._loaded.repository, name)
        if files != seen.files:
            self._incomplete[name] = FilesSeen(seen.tried, files, now)
            return False
        return files != seen.tried and now - seen.since >= STILL_SECONDS

    def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        names = list(map(str, request.get("models", ())))
        if request["command"] in ("load", "release", "table"):
            return self._table(request["command"], names, request.get("version"))
        outcomes: list[Outcome] = []
        if request["command"] == "reload":
            outcomes = [self._reload(name) for name in names or self._loaded.changed()]
        elif request["command"] == "unload":
            outcomes = [self._unload(name) for name in names]
        return {
            "repository": str(self._loaded.repository.resolve()),
            "models": self._loaded.served(),
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }

    def _table(self, command: str, names: Sequence[str], version: int | None) -> dict[str, Any]:
        """Load or release `names`, and return the table of all models; empty if the caller has this `version` of it."""
        for name in names:
            if command == "load":
                self._load(name)
            else:
                self._loaded.release(name)
        return self._loaded.table(version)

    def _load(self, name: str) -> None:
        try:
            self._loaded.load(name)
        except ServerUnreachable:  # not the model's fault
            raise
        except ServerError as error:
            if name not in self._not_loaded:
                self._report(f"{error} It is tried again for each request, without a line.")
            self._not_loaded.add(name)
            raise
        self._not_loaded.discard(name)

    def _reload(self, name: str) -> Outcome:
        began, manifest = time.monotonic(), self._loaded.published(name)
        is_served = name in self._loaded.served()
        if is_served and manifest and name not in self._loaded.changed():
            return Outcome(name, "unchanged")
        files = files_of(self._loaded.repository, name)
        try:
            self._loaded.reload(name)
        except (HfxError, OSError) as error:
            self._passed_over[name] = manifest
            # An error of the system may pass, so the same files are tried again.
            is_of_system = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            self._incomplete[name] = FilesSeen(frozenset() if is_of_system else files, files, began)
            if self._reasons.get(name) != str(error):
                self._report(f"The new version of {name} can't be served: {error}")
            self._reasons[name] = str(error)
            return Outcome(name, "failed", time.monotonic() - began, str(error))
        self._incomplete.pop(name, None)
        self._reasons.pop(name, None)
        seconds = time.monotonic() - began
        self._report(f"{name} is served as it is published now, after {seconds:.1f} s.")
        return Outcome(name, "reloaded" if is_served else "added", seconds)

    def _unload(self, name: str) -> Outcome:
        if name not in self._loaded.served():
            return Outcome(name, "failed", reason=f"{name} is not served.")
        self._passed_over[name] = self._loaded.published(name)
        self._incomplete.pop(name, None)
        self._loaded.unload(name)
        self._report(f"{name} is served no longer.")
        return Outcome(name, "unloaded")


def files_of(repository: Path, name: str) -> Files:
    """Return path, size and time of the last change (ns) of the files in all folders whose names begin with `name`."""
    found = set()
    for path in repository.glob(f"{name}*/**/*"):
        with suppress(OSError):  # it has just been renamed
            status = path.lstat()
            found.add((str(path), status.st_size, status.st_mtime_ns))
    return frozenset(found)


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, carry_out: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        super().__init__(path, _Handler)
        self.carry_out = carry_out


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        try:
            answer = self.server.carry_out(json.loads(self.rfile.readline()))
        except (HfxError, OSError, ValueError, LookupError, TypeError) as error:
            answer = {"error": str(error), "has_ended": isinstance(error, ServerUnreachable)}
        with suppress(OSError):  # the caller has gone
            self.wfile.write(json.dumps(answer).encode() + b"\n")


# Sending commands


def servers_of(repository: Path) -> list[Path]:
    """Find the sockets of this user's servers that serve `repository`."""
    paths = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{SOCKET}"))
    with ThreadPoolExecutor(max(1, len(paths))) as pool:
        served = list(pool.map(_repository, paths))
    return [path for path, folder in zip(paths, served, strict=True) if folder == str(repository.resolve())]


def _repository(path: Path) -> str:
    """Return the repository of the server at `path`; empty if the server does not answer this user."""
    with suppress(OSError, ServerError):  # another user's server, or one that has ended or is stopped
        if path.lstat().st_uid == os.getuid():
            return str(send(path, "status", timeout=STATUS_SECONDS)["repository"])
    return ""


def send(path: Path, command: str, models: Sequence[str] = (), timeout: float | None = None) -> dict[str, Any]:
    """Send a command to the server at `path`, and return its answer: `repository`, `models`, `outcomes`.

    Raises OSError or ServerError.
    """
    with connect_socket(path, timeout) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"command": command, "models": list(models)}).encode() + b"\n")
        stream.flush()
        answer: dict[str, Any] = json.loads(stream.readline() or b'{"error": "it ended meanwhile"}')
    if "error" in answer:
        raise ServerError(f"The server at {path.parent} says: {answer['error']}.", "Its own lines say more.")
    return answer
