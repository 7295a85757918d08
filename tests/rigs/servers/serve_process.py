"""`hfx serve` as a process of its own, for tests of what happens to it: its words, its server, its stubs, its end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hfx.triton import process
from hfx.triton.workspace import PREFIX, SHARED_MEMORY, region_prefix
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.installed_triton import WITH

HFX = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]
FREE_PORTS = (*WITH, "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
SECONDS = 60.0  # until a test gives up; nothing should take as long


class ServeProcess:
    """A running `hfx serve`: `http_url`, and what it says on stderr by and by."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert running.stdout is not None
        self.ready = json.loads(running.stdout.readline() or "{}")
        if not self.ready.get("ready"):
            self.end()
            raise AssertionError(self.words)
        self.http_url: str = self.ready["http_url"]

    def _read(self) -> None:
        assert self.running.stderr is not None
        for line in self.running.stderr:
            self._lines.append(line)

    @property
    def words(self) -> str:
        """All that it has said so far."""
        return "".join(self._lines)

    def wait_for_words(self, words: str, seconds: float = 120.0) -> str:
        """The line with WORDS, as soon as it is said, within `seconds`."""
        return wait_until(lambda: [line for line in list(self._lines) if words in line], repr(words), seconds)[0]

    @property
    def fronts(self) -> list[int]:
        """The process ids of its HTTP fronts: one, unless it is being replaced."""
        return self._running("hfx.front")

    @property
    def batches(self) -> list[int]:
        """The process ids of its Batch API: one, unless it is being replaced; none without --batch-dir."""
        return self._running("hfx.batch.api")

    def _running(self, module: str) -> list[int]:
        """The children that run `module`."""
        children: list[int] = []
        for task in Path(f"/proc/{self.running.pid}/task").iterdir():
            with suppress(FileNotFoundError):  # the thread has ended
                children += map(int, (task / "children").read_text().split())
        return [pid for pid in sorted(children) if module.encode() in command_line(pid)]

    @property
    def server(self) -> int:
        """The process id of its tritonserver."""
        [child] = Path(f"/proc/{self.running.pid}/task/{self.running.pid}/children").read_text().split()
        return int(child)

    def stub(self, model: str) -> int:
        """The process id of the stub of MODEL."""
        return process.stubs(self.server)[f"{model}_0_0"][-1]

    def end(self) -> int:
        """The exit code, once it has ended and said all."""
        code = self.running.wait(SECONDS)
        self._reader.join(SECONDS)
        return code


@contextmanager
def serving(
    repository: Path, *options: str, through: Sequence[str] = (), hfx: Sequence[str] = HFX
) -> Iterator[ServeProcess]:
    """`hfx serve` of REPOSITORY, run by the command THROUGH; it is killed at the end when it still runs."""
    with subprocess.Popen(
        [*through, *hfx, "serve", str(repository), *FREE_PORTS, *options, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield ServeProcess(running)
        finally:
            running.kill()


def command_line(pid: int) -> list[bytes]:
    """The arguments of a process; none once it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def left_behind() -> list[str]:
    """Folders, shared memory and processes of servers that have ended, in this test's temporary folder."""
    folders = list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    regions = [region.name for folder in folders for region in SHARED_MEMORY.glob(region_prefix(folder) + "*")]
    return [str(folder) for folder in folders] + regions


def running_in(group: int) -> list[int]:
    """The processes that still run in the process group GROUP."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if process.is_running(pid, group)]


def post(url: str, body: Any, seconds: float = SECONDS) -> tuple[int, Any]:
    """Status and JSON of the answer to BODY; OSError when there is none."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def infer(http_url: str, model: str, text: str, **settings: int) -> str:
    """The first text of the answer to TEXT (one row)."""
    inputs = [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]
    inputs += [{"name": k, "shape": [1, 1], "datatype": "INT32", "data": [v]} for k, v in settings.items()]
    status, answer = post(f"{http_url}/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, answer
    return str(next(output["data"][0] for output in answer["outputs"] if output["datatype"] == "BYTES"))
