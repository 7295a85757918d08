"""The models of a running tritonserver process: finding dead models, and replacing single models while others serve.

Models that died are loaded again from the server's own folder. Models that were published again are loaded from the
repository.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hfx.errors import ServerError, ServerUnreachable
from hfx.metadata import TEMPORARY
from hfx.names import MEMBER_SUFFIXES
from hfx.repository import models as catalogue
from hfx.repository.catalog import model_folders
from hfx.triton import process
from hfx.triton.liveness import Death, call, model_of
from hfx.triton.models import answers_later, is_ensemble, may_hang, select_models
from hfx.triton.reload import Served, Unsettled, manifest_text
from hfx.triton.residency import MB, POLL_SECONDS, UNLOAD_SECONDS, Residency


class Instances:
    """The Python processes of the server with process group `group` at present. `note` adds later processes."""

    def __init__(self, group: int) -> None:
        self.group = group
        self._serving = {instance: pids[-1] for instance, pids in process.stubs(group).items()}

    def deaths(self) -> list[Death]:
        """Return the deaths of processes that should serve."""
        return [_death(name, pid) for name, pid in list(self._serving.items()) if not self._runs(pid)]

    def run_beside(self, models: Collection[str]) -> bool:
        """Return whether a process of a model other than `models` runs."""
        return any(model_of(name) not in models and self._runs(pid) for name, pid in list(self._serving.items()))

    def have_no_open_request(self, models: Collection[str], folder: Path) -> bool:
        """Return whether no process of `models` has an open request according to its file in `folder`.

        Return False if a process has no such file.
        """
        counts = [folder / str(pid) for pid in self._pids(models)]
        return all(count.exists() and not any(count.read_bytes()) for count in counts)

    def all_answered(self, models: Collection[str], folder: Path) -> bool:
        """Return whether no running process has an open request according to its file in `folder`.

        This includes processes that were replaced. A process of `models` without such a file must have ended: a
        stopping server ends it when its requests are answered.
        """
        if any(not (folder / str(pid)).exists() and self._runs(pid) for pid in self._pids(models)):
            return False
        return not any(any(count.read_bytes()) for count in folder.iterdir() if self._runs(int(count.name)))

    def kill(self, models: Collection[str]) -> None:
        """Kill the processes of `models`.

        A process that was only suspended (SIGSTOP) could otherwise run on later, and bring the server down.
        """
        for name, pid in list(self._serving.items()):
            if model_of(name) in models and self._runs(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def forget(self, models: Collection[str]) -> dict[str, int]:
        """Stop watching the processes of `models`, which may then end. Returns them: instance -> process id."""
        forgotten = {name: pid for name, pid in self._serving.items() if model_of(name) in models}
        self._serving = {name: pid for name, pid in self._serving.items() if name not in forgotten}
        return forgotten

    def restore(self, forgotten: Mapping[str, int]) -> None:
        """Watch the processes again that `forget` returned."""
        self._serving |= forgotten

    def wait_for_end(self, pids: Collection[int]) -> None:
        """Return when `pids` have ended: a moment after their model is unloaded, or after UNLOAD_SECONDS."""
        deadline = time.monotonic() + UNLOAD_SECONDS
        while time.monotonic() < deadline and any(self._runs(pid) for pid in pids):
            time.sleep(POLL_SECONDS)

    def note(self, models: Collection[str], before: Collection[int]) -> None:
        """Watch the latest process of each instance of `models`.

        Processes in `before` are passed over, as they may still be finishing their requests.
        """
        for name, pids in process.stubs(self.group).items():
            if model_of(name) in models:
                self._serving[name] = ([pid for pid in pids if pid not in before] or pids)[-1]

    def _pids(self, models: Collection[str]) -> list[int]:
        return [pid for name, pid in list(self._serving.items()) if model_of(name) in models]

    def _runs(self, pid: int) -> bool:
        return process.is_running(pid, self.group)


def _death(instance: str, pid: int) -> Death:
    model, how = model_of(instance), process.ending(pid)
    return Death((model,), f"the Python process of {model} died" + (f" ({how})" if how else ""))


OPEN_REQUESTS = "open_requests"  # the folder with a file for each process that counts its open requests
CLOSE_SECONDS = 10.0  # for a replacement that is in progress when the server has ended


class LoadedModels:
    """The models of `served` on `device`. They come from `repository`, and are limited to `names` (none: all).

    Replacing them needs Triton's model control at `served.http_url`. `revision` changes with the set of models.
    """

    def __init__(self, served: Served, repository: Path, names: Sequence[str], device: str) -> None:
        self.revision = 0
        self.repository = repository
        self.has_failed_to_swap = False
        self._changing = threading.Lock()
        self._closed = False
        self._served = served
        self._names = names
        self._device = device
        self._instances = Instances(0)
        self._unsettled = ""  # the reason why the server must be started again from its files, if there is one
        self.residency = Residency(served)
        (served.folder / OPEN_REQUESTS).mkdir()

    @property
    def folder(self) -> Path:
        """The folder of the server's own files."""
        return self._served.folder

    def begin(self, group: int) -> None:
        """Watch the processes of the server with process group `group`, which has just been started."""
        self._instances = Instances(group)
        self._unsettled = ""
        self.has_failed_to_swap = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Return a context in which no other thread replaces models. Raises ServerError after `close`."""
        with self._changing:
            if self._closed:
                raise ServerError("The server has been stopped.")
            yield

    def close(self) -> None:
        """Allow no more replacements. One that is in progress fails soon, as its server has ended."""
        self._closed = True
        if self._changing.acquire(timeout=CLOSE_SECONDS):
            self._changing.release()

    def disconnect(self) -> None:
        """Close the connection for loads, as a stopping Triton would wait for it.

        Do nothing while a model is being loaded.
        """
        if self._changing.acquire(blocking=False):
            self.residency.disconnect()
            self._changing.release()

    def deaths(self) -> list[Death]:
        """Return the deaths of processes, with their reasons.

        Triton never restarts a stub that died, and continues to report the model as ready.
        """
        return [Death((), self._unsettled)] if self._unsettled else self._instances.deaths()

    def all_answered(self, by_triton: bool) -> bool:
        """Return whether no request is open; False if that can't be known.

        `by_triton` says that Triton itself has counted no open request. Then only the requests that a stopping Triton
        does not count are checked; otherwise, all requests are.
        """
        folders = model_folders(self._served.repository)
        later = [folder.name for folder in folders if answers_later(folder, self._device)]
        if not by_triton and any(folder.name not in later and not is_ensemble(folder) for folder in folders):
            return False
        return self._instances.all_answered(later, self.folder / OPEN_REQUESTS)

    # Models that died

    def can_swap(self, models: Sequence[str]) -> bool:
        """Return whether `models` can be replaced while the others serve, without leaving a request that never ends.

        When a process dies, the requests inside a model that answers later, such as streams, never end (Triton 2.51).
        """
        repository = self._served.repository
        if not all((repository / model).is_dir() for model in models):
            return False
        later = [model for model in models if may_hang(repository / model, self._device)]
        return self._instances.have_no_open_request(later, self.folder / OPEN_REQUESTS)

    def others_serve(self, models: Sequence[str]) -> bool:
        """Return whether a process of a model other than `models` runs."""
        return self._instances.run_beside(models)

    def swap(self, models: Sequence[str]) -> None:
        """Replace the processes of `models`, dead or not, while the others serve.

        This takes 0.2 to 0.5 s for a small model. Raises ServerError with the reason if a model does not load; it may
        be called again.
        """
        with self.changing():
            models = [model for model in models if model in self.residency.loaded_folders()]
            self._instances.kill(models)
            before = self._instances.forget(models)
            try:
                for model in models:
                    self._served.load(model)
            except ServerError:
                self.has_failed_to_swap = True
                self._instances.restore(before)
                raise
            self.has_failed_to_swap = False
            self._instances.note(models, before.values())

    # Models that are published again

    def served(self) -> list[str]:
        """Return the sorted names of the models that are served, without the members of others."""
        return sorted({*entry_points(self._served.http_url), *self.residency.unloaded})

    def published(self, name: str) -> bytes:
        """Return the text of the manifest of `name` in the repository; empty for a model without one."""
        return manifest_text(self.repository, name)

    def changed(self) -> list[str]:
        """Return the published models that differ from the served ones.

        New models are included, unless the names are limited.
        """
        copies = self._served.repository
        names = [entry.name for entry in catalogue(self.repository) if entry.manifest]
        return [
            name
            for name in names
            if manifest_text(copies, name) != self.published(name)
            and (not self._names or name in self._names or (copies / name).is_dir())
        ]

    def reload(self, name: str) -> None:
        """Serve `name` as it is published now, as a new model or in place of the previous one. No request fails.

        Raises RepositoryError or ServerError with the reason if it does not load; the previous model then remains.
        """
        with self.changing():
            folders = {*self._served.members(name), *select_models(self.repository, [name])}
            before = self._instances.forget(folders)
            try:
                self._served.replace(self.repository, name, name not in self.residency.unloaded)
            except Unsettled as error:
                self._unsettled = f"{name} was not loaded to the end ({error.message})"
            finally:
                self._instances.note(folders, before.values())
                self.residency.refresh(name)
                self.revision += 1

    def unload(self, name: str) -> None:
        """Stop serving `name`, once its requests are answered."""
        with self.changing():
            folders = self._served.members(name)
            self._instances.forget(folders)
            for folder in reversed(folders):  # an ensemble before its members
                self._served.unload(folder)
            self.residency.refresh(name)
            self.revision += 1

    # Models that are loaded on demand

    def load(self, name: str) -> None:
        """Load `name` unless it is in memory. Raises ServerError with the reason if that fails, or it is not served."""
        with self.changing():
            if name not in self.residency.names():
                raise ServerError(f"{name} is not served.")
            if name in self.residency.unloaded:
                folders = self.residency.own_folders(name)
                self.residency.load(name, self._instances.group)
                self._instances.note(folders, ())

    def release(self, name: str) -> None:
        """Free the memory of `name`. The model is still served, as it is loaded again on demand."""
        with self.changing():
            if name in self.residency.names() and name not in self.residency.unloaded:
                processes = self._instances.forget(self.residency.own_folders(name))
                self.residency.unload(name)
                self._instances.wait_for_end(processes.values())

    def load_in_turn(
        self, budget: int, progress: Callable[[str], None], leave_out: Callable[[str, ServerError], None]
    ) -> None:
        """Load each model once to measure it.

        The last models, as many as fit into `budget` bytes together, stay loaded.

        Raises UsageError for a model that takes more than `budget` by itself. `leave_out` is called for a model that
        does not load.
        """
        residency, loaded = self.residency, list[str]()
        for name in residency.names():
            residency.check(name, budget)
            while loaded and residency.bytes_of({*residency.loaded_folders(), *residency.own_folders(name)}) > budget:
                self.release(loaded.pop(0))
            try:
                self.load(name)
            except ServerError as error:
                leave_out(name, error)
                continue
            progress(f"{name} takes {residency.check(name, budget) / MB:.0f} MB.")
            loaded.append(name)
            while residency.bytes_of(residency.loaded_folders()) > budget:
                self.release(loaded.pop(0))

    def table(self, version: int | None) -> dict[str, Any]:
        """Return the table of all models for the front; empty if `version` is the table's present version.

        A front that starts while a model is being loaded is not delayed by the load.
        """
        return {} if version == self.residency.version else self.residency.table()


# Models as Triton reports them
ANSWER_SECONDS = 10.0


def entry_points(http_url: str) -> list[str]:
    """Return the sorted names of the ready models, without the members of others."""
    ready = {name for name in statistics(http_url) if TEMPORARY not in name}
    members = {name + end for name in ready for end in MEMBER_SUFFIXES}
    return sorted(ready - members)


def statistics(http_url: str) -> dict[str, dict[str, Any]]:
    """Return Triton's inference statistics: model name -> the object of its statistics extension.

    Its members are, for example, `["inference_count"]` (rows), `["execution_count"]` (batches) and `["batch_stats"]`;
    times are in nanoseconds.
    """
    url = f"{http_url}/v2/models/stats"
    try:
        answer = json.loads(call(url, timeout=ANSWER_SECONDS))
    except OSError as error:
        raise ServerUnreachable(f"{url} has no answer: {error}.", "Is the server still running?") from error
    except http.client.HTTPException as error:
        raise ServerError(f"{error}.") from error
    return {model["name"]: model for model in answer["model_stats"]}
