"""An error of any system call while models are copied, replaced or loaded leaves whole models, and a retry succeeds."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hfx.triton import commands
from hfx.triton.loaded_models import LoadedModels
from hfx.triton.reload import Served
from hfx.triton.workspace import sweep
from tests.rigs.files import repositories
from tests.rigs.machine.faults import Ended, Faults
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until

OLD, NEW = "old", "new"


class Triton(BaseHTTPRequestHandler):
    """Triton's model control: it loads what is in the repository, and takes only whole models."""

    repository: Path
    memory: dict[str, tuple[str, list[str]]]  # a model's version, and the models that it calls

    def do_POST(self) -> None:
        """Load or unload a model, or list those that are loaded."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        *_, name, action = self.path.split("/")
        try:
            if action == "load":
                self.memory[name] = read(self.repository, name, {*self.memory})
            elif action == "unload":
                self.memory.pop(name, None)
            self._send(200, [{"name": each, "state": "READY"} for each in self.memory])
        except OSError as error:
            self._send(400, {"error": str(error)})

    def do_GET(self) -> None:
        """Describe a model, or all that are loaded."""
        self._send(200, {"model_stats": [{"name": name} for name in self.memory]})

    def _send(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def read(repository: Path, name: str, loaded: set[str]) -> tuple[str, list[str]]:
    """Return version and steps of a model on the disk, whose steps must be loaded. Raises OSError."""
    steps = re.findall(r'model_name: "(.*?)"', (repository / name / "config.pbtxt").read_text())
    if not {*steps} <= loaded:
        raise OSError(f"{name} needs {steps}")
    return (repository / name / "1" / "version").read_text(), steps


def version_of(memory: dict[str, tuple[str, list[str]]]) -> str:
    """Return the version of the model m, all of whose steps must have it."""
    version, steps = memory["m"]
    assert {memory[step][0] for step in steps} == {version}
    return version


@pytest.fixture
def triton() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Triton)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def published(folder: Path, version: str) -> Path:
    """Publish a version of the model m, whose files were written long ago."""
    folder.mkdir()
    repositories.build(folder)
    for model in folder.iterdir():
        (model / "1" / "version").write_text(version)
    repositories.seal(folder)
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return folder


REPLACE = """
from pathlib import Path
from hfx.triton.reload import Served
from hfx.triton.workspace import sweep

def work(arm, folder, url, source):
    served = Served(Path(folder), url, 5.0)
    arm()
    served.replace(Path(source), "m")
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [41, full(1)])
def test_an_error_while_a_model_is_replaced_keeps_one_version_and_its_files(
    step: int, memory: Path, triton: ThreadingHTTPServer
) -> None:
    old, new = published(memory / OLD, OLD), published(memory / NEW, NEW)
    folder, url = memory / "served", f"http://127.0.0.1:{triton.server_port}"
    Triton.repository = folder / "repository"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(old, Triton.repository)
        Triton.memory = started(Triton.repository)
        return str(folder), url, str(new)

    def check(ended: Ended) -> None:
        version = version_of(Triton.memory)
        assert ended.fired > 1 or version == (OLD if ended.error not in ("", "Unsettled") else NEW)
        assert ended.fired > 1 or version_of(started(Triton.repository)) == version
        Served(folder, url, 5.0).replace(new, "m")
        assert version_of(Triton.memory) == version_of(started(Triton.repository)) == NEW
        assert {path.name for path in folder.iterdir() if not path.name.startswith("removed-")} == {"repository"}
        assert {path.name for path in Triton.repository.iterdir()} == {path.name for path in new.iterdir()}

    with Faults(REPLACE) as faults:
        print("reload", faults.sweep(prepare, check, folder, step))


def started(repository: Path) -> dict[str, tuple[str, list[str]]]:
    """Return what Triton has loaded after a start, which loads all that is in the repository."""
    names = {path.name for path in repository.iterdir()}
    return {name: read(repository, name, names) for name in names}


START = """
import tempfile
from pathlib import Path
from hfx.errors import ServerError
from hfx.triton import TritonProcess
from hfx.triton.installation import Installation

class BeforeTriton(TritonProcess):
    def _launch_private_or_not(self):
        raise ServerError("Triton would start now.")

def work(arm, repository, temporary):
    tempfile.tempdir = temporary
    installation = Installation(Path("/bin/false"), {}, Path("/bin"), Path("/bin/false"))
    server = BeforeTriton(Path(repository), private=True, find=lambda: installation, steps="python")
    server.check = lambda: []
    arm()
    server.start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [41, full(1)])
def test_an_error_while_a_server_copies_its_models_is_reported_and_leaves_nothing(
    step: int, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, temporary = published(memory / "repository", OLD), memory / "temporary"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return str(repository), str(temporary)

    def check(ended: Ended) -> None:
        assert ended.error in ("ServerError", "RepositoryError", "ModelCorrupt")
        if ended.fired < 2:
            monkeypatch.setattr(tempfile, "tempdir", str(temporary))
            sweep()
            monkeypatch.undo()
            assert not [*temporary.iterdir()]

    with Faults(START) as faults:
        print("copies", faults.sweep(prepare, check, memory, step))


WORKSPACE = """
import tempfile
from hfx.triton.workspace import Workspace

def work(arm, temporary):
    tempfile.tempdir = temporary
    workspace = Workspace()
    (workspace.folder / "repository").mkdir()
    arm()
    workspace.remove()
"""


def test_what_the_removal_of_a_workspace_leaves_is_removed_by_the_next_sweep(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = memory / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return (str(temporary),)

    def check(ended: Ended) -> None:
        sweep()
        assert ended.fired > 1 or not [*temporary.iterdir()]

    with Faults(WORKSPACE) as faults:
        print("workspace", faults.sweep(prepare, check, temporary, 1))


ON_DEMAND = """
from pathlib import Path
from hfx.errors import HfxError
from hfx.triton.loaded_models import LoadedModels
from hfx.triton.reload import Served

def tried(function, *arguments):
    try:
        return function(*arguments)
    except HfxError:
        return None
    except OSError:  # which the process answers to the front (commands.py)
        return None

def work(arm, folder, url, published):
    served = Served(Path(folder), url, 5.0)
    models = LoadedModels(served, Path(published), (), "cpu")
    models.residency.unloaded.update(models.residency.names())
    models.residency.refresh("m")
    arm()
    tried(models.load, "m")
    tried(models.table, None)
    tried(models.release, "m")
    disarm()
    models.load("m")
    assert models.table(None)["models"]["m"]["is_loaded"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [9, full(1)])
def test_an_error_while_a_model_is_loaded_on_demand_lets_the_next_load_succeed(
    step: int, memory: Path, triton: ThreadingHTTPServer
) -> None:
    old = published(memory / OLD, OLD)
    folder, url = memory / "served", f"http://127.0.0.1:{triton.server_port}"
    Triton.repository = folder / "repository"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(old, Triton.repository)
        Triton.memory = {}
        return str(folder), url, str(old)

    def check(ended: Ended) -> None:
        assert not ended.error
        assert version_of(Triton.memory) == OLD and len(Triton.memory) == 4

    with Faults(ON_DEMAND) as faults:
        print("loads on demand", faults.sweep(prepare, check, folder, step))


def test_a_new_version_that_the_disk_could_not_take_is_served_later_without_a_command(
    tmp_path: Path, triton: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(commands, "STILL_SECONDS", 0.0)
    repository, folder = published(tmp_path / "repository", OLD), tmp_path / "served"
    folder.mkdir()
    Triton.repository = folder / "repository"
    shutil.copytree(repository, Triton.repository)
    Triton.memory = started(Triton.repository)
    models = LoadedModels(Served(folder, f"http://127.0.0.1:{triton.server_port}", 5.0), repository, (), "cpu")
    lines: list[str] = []
    (folder / "incoming").touch()  # where the copy would be
    running = commands.Commands(models, lines.append)
    shutil.rmtree(repository)
    published(repository, NEW)
    running.watch()
    wait_until(lambda: bool(lines), "the line about the failed reload")
    (folder / "incoming").unlink()
    wait_until(lambda: len(lines) > 1, "the next line")
    assert version_of(Triton.memory) == NEW
    assert "File exists" in lines[0] and "m is served as it is published now" in lines[1]
