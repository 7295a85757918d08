"""The Python process of each model instance of a running server: which one serves, and whether it died."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from hfx.triton import process
from hfx.triton.liveness import Death, model_of


class Instances:
    """The processes of the server with process group `group`, as they are now; later ones once they are noted."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._serving = {instance: pids[-1] for instance, pids in process.stubs(group).items()}

    def deaths(self) -> list[Death]:
        """The processes that should serve and have died."""
        return [_death(name, pid) for name, pid in list(self._serving.items()) if not self._runs(pid)]

    def run_beside(self, models: Collection[str]) -> bool:
        """Whether a process of another model runs."""
        return any(model_of(name) not in models and self._runs(pid) for name, pid in list(self._serving.items()))

    def have_no_open_request(self, models: Collection[str], folder: Path) -> bool:
        """Whether the processes of `models` counted their open requests in `folder`, and none was open at last."""
        counts = [folder / str(pid) for pid in self._pids(models)]
        return all(count.exists() and not any(count.read_bytes()) for count in counts)

    def all_answered(self, models: Collection[str], folder: Path) -> bool:
        """Whether no process, also of those replaced, has an open request by its count in `folder`.

        Those of `models` that do not count have none once they have ended: a stopping server unloads what is answered.
        """
        if any(not (folder / str(pid)).exists() and self._runs(pid) for pid in self._pids(models)):
            return False
        return not any(any(count.read_bytes()) for count in folder.iterdir() if self._runs(int(count.name)))

    def kill(self, models: Collection[str]) -> None:
        """End the processes of `models`; a stopped one that ran on could end the server."""
        for name, pid in list(self._serving.items()):
            if model_of(name) in models and self._runs(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def forget(self, models: Collection[str]) -> dict[str, int]:
        """Watch those of `models` no longer: they may end. Returns them: instance -> process id."""
        forgotten = {name: pid for name, pid in self._serving.items() if model_of(name) in models}
        self._serving = {name: pid for name, pid in self._serving.items() if name not in forgotten}
        return forgotten

    def restore(self, forgotten: Mapping[str, int]) -> None:
        """Watch those processes again that `forget` returned."""
        self._serving |= forgotten

    def note(self, models: Collection[str], before: Collection[int]) -> None:
        """Watch the processes of `models`: the latest that is not one of `before`, which may still end its requests."""
        for name, pids in process.stubs(self._group).items():
            if model_of(name) in models:
                self._serving[name] = ([pid for pid in pids if pid not in before] or pids)[-1]

    def _pids(self, models: Collection[str]) -> list[int]:
        return [pid for name, pid in list(self._serving.items()) if model_of(name) in models]

    def _runs(self, pid: int) -> bool:
        return process.is_running(pid, self._group)


def _death(instance: str, pid: int) -> Death:
    model, how = model_of(instance), process.ending(pid)
    return Death((model,), f"the Python process of {model} died" + (f" ({how})" if how else ""))
