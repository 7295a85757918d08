"""The models of a server that are in memory. Other models are also served, and are loaded for their next request.

The front decides when to load and unload a model (front/idle.py), as it knows the requests. This module loads and
unloads the models, one at a time, and measures their memory. A folder that several models need, such as a step of two
ensembles, is counted once, and stays in memory as long as another model needs it.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from hfx.errors import ServerError, UsageError
from hfx.names import MEMBER_SUFFIXES
from hfx.repository import models
from hfx.triton import process
from hfx.triton.liveness import call, connect
from hfx.triton.liveness.probe import model_path
from hfx.triton.reload import Served

# How long an unload waits for requests that Triton still holds, and for requests over gRPC, which the front doesn't
# see.
UNLOAD_SECONDS = 10.0
POLL_SECONDS = 0.01
MB = 1_000_000
DESCRIPTIONS = ("", "/config")  # below a model's path


class Residency:
    """The models of `served`. Models in `unloaded` are not in memory. `version` changes with the result of `table`."""

    def __init__(self, served: Served) -> None:
        self.unloaded: set[str] = set()
        self.version = 0
        self._served = served
        self._folders: dict[str, list[str]] = {}  # by model name
        self._described: dict[str, dict[str, str]] = {}
        # By process group. All loads share one connection, and so take one thread of Triton.
        self._connections: dict[int, http.client.HTTPConnection] = {}
        self._bytes: dict[str, int] = {}  # by folder, as measured when it was loaded last

    def names(self) -> list[str]:
        """Return the sorted names of the models that callers can name, without their members."""
        if not self._folders:
            names = {entry.name for entry in models(self._served.repository)}
            names -= {name + end for name in names for end in MEMBER_SUFFIXES}
            self._folders = {name: self._served.needed(name) for name in sorted(names)}
        return [*self._folders]

    def loaded_folders(self) -> set[str]:
        """Return the folders of all models in memory."""
        return self._folders_of({*self.names()} - self.unloaded)

    def own_folders(self, name: str) -> list[str]:
        """Return the folders of `name` that no model in memory needs, the entry point last."""
        others = self._folders_of({*self.names()} - self.unloaded - {name})
        return [folder for folder in self._folders[name] if folder not in others]

    def to_load(self) -> Collection[str]:
        """Return the names of the folders that Triton loads when it starts, or a * for all."""
        return sorted(self.loaded_folders()) if self.unloaded else ("*",)

    def bytes_of(self, folders: Collection[str]) -> int:
        """Return the bytes that `folders` take in memory: as measured, or otherwise the size of their files."""
        return sum(self._bytes.get(folder) or self._served.file_bytes(folder) for folder in folders)

    def check(self, name: str, budget: int) -> int:
        """Return the bytes that `name` takes by itself. Raises UsageError if this is more than `budget`."""
        size = self.bytes_of(self._folders[name])
        if size > budget:
            raise UsageError(
                f"The model {name!r} takes {size / MB:.0f} MB, more than a memory budget of {budget / MB:.0f} MB.",
                "Give it a larger --memory-budget, or serve the others with --models.",
            )
        return size

    def load(self, name: str, group: int) -> None:
        """Load `name` into the server with process group `group`.

        Raises ServerError with the reason, and ServerUnreachable if the server has ended, and is being started again.
        """
        begun: list[str] = []
        if group not in self._connections:
            self._connections = {group: connect(self._served.http_url, self._served.timeout)}
        try:
            for folder in self.own_folders(name):
                begun.append(folder)
                before = process.memory(group)
                self._served.control(folder, "load", self._connections[group])
                self._bytes[folder] = max(process.memory(group) - before, 0)
            self.describe(name)
        except (ServerError, OSError) as error:
            self._connections.pop(group).close()
            self._unload(begun[::-1])
            if isinstance(error, OSError):
                raise ServerError(f"{name} can't be loaded: {error.strerror}.") from error
            # Callers see the message, so it must not have paths of the server.
            raise error.with_message(error.message.replace(f"{self._served.repository}/", "")) from error
        self.unloaded.discard(name)

    def disconnect(self) -> None:
        """Close the connection for loads. The next load opens a new one."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def unload(self, name: str) -> None:
        """Unload `name`, and return when Triton has, or after UNLOAD_SECONDS if it still has requests."""
        folders = self.own_folders(name)
        self.unloaded.add(name)
        self.version += 1
        self._unload(folders[::-1])  # an ensemble before its members

    def refresh(self, name: str) -> None:
        """Note that `name` was published again, added or removed."""
        self._folders.clear()
        self.version += 1
        self.unloaded &= set(self.names())
        for folder in self._folders.get(name, ()):
            self._bytes.pop(folder, None)
        if name in self._described and name in self.names() and name not in self.unloaded:
            with suppress(ServerError):
                self.describe(name)

    def describe(self, name: str) -> None:
        """Store Triton's descriptions of `name`, because Triton doesn't describe unloaded models.

        Raises ServerError.
        """
        url = self._served.http_url + model_path(name)
        try:
            texts = {end: call(url + end, timeout=self._served.timeout).decode() for end in DESCRIPTIONS}
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"Triton does not describe {name}: {error}.") from error
        self._described[name] = texts
        self.version += 1

    def unloaded_configurations(self) -> list[dict[str, Any]]:
        """Triton's configurations of the models that are not in memory."""
        described = [self._described.get(name) for name in sorted(self.unloaded)]
        return [json.loads(texts["/config"]) for texts in described if texts]

    def table(self) -> dict[str, Any]:
        """Return the table of all models for the front."""
        for name in self.names():
            if name not in self._described and name not in self.unloaded:
                with suppress(ServerError):
                    self.describe(name)
        return {
            "version": self.version,
            "bytes": {folder: self.bytes_of([folder]) for folder in self._folders_of(self.names())},
            "models": {
                name: {
                    "folders": needed,
                    "is_loaded": name not in self.unloaded,
                    "described": self._described.get(name, {}),
                }
                for name, needed in self._folders.items()
            },
        }

    def _folders_of(self, names: Iterable[str]) -> set[str]:
        return {folder for name in names for folder in self._folders[name]}

    def _unload(self, folders: Collection[str]) -> None:
        for folder in folders:
            with suppress(ServerError):  # it was not loaded, or the server has died
                self._served.control(folder, "unload")
        deadline = time.monotonic() + UNLOAD_SECONDS
        while time.monotonic() < deadline and self._in_memory() & set(folders):
            time.sleep(POLL_SECONDS)

    def _in_memory(self) -> set[str]:
        try:
            rows = json.loads(call(f"{self._served.http_url}/v2/repository/index", b"{}"))
        except (OSError, http.client.HTTPException):
            return set()  # the server has died
        return {row["name"] for row in rows if row.get("state", "UNAVAILABLE") != "UNAVAILABLE"}
