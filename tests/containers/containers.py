"""Containers started by documented command lines: helpers to watch them, kill their processes and remove them."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.images import run
from tests.rigs.checkpoints.reciting_generator import Recital
from tests.rigs.clients.generation_requests import Ask
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS
from tests.rigs.servers.serve_process import infer

SECONDS = 120.0
HTTP, GRPC = "http://127.0.0.1:8000", "127.0.0.1:8001"  # of the documents
KILL = """
import os, re, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    line = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
    if int(pid) != os.getpid() and re.search(sys.argv[1], line):
        os.kill(int(pid), 9)
        print(pid)
"""


@dataclass(frozen=True)
class Container:
    """A container and the `docker run` that waits for its end; it is published at `http_url` and `grpc_url`."""

    name: str
    running: subprocess.Popen[bytes]
    output: Path
    http_url: str = HTTP
    grpc_url: str = GRPC

    @property
    def log(self) -> str:
        """Everything that the container has printed."""
        return self.output.read_text(errors="replace")

    @property
    def exit_code(self) -> int:
        """The exit code, once the container has ended."""
        return self.running.wait(SECONDS)

    def state(self, template: str) -> Any:
        """Return the value of `template` by `docker inspect`."""
        return json.loads(run("docker", "inspect", "--format", f"{{{{json {template}}}}}", self.name))

    def exec(self, *command: str) -> str:
        """Return the output of a command in the container."""
        return run("docker", "exec", self.name, *command)

    def kill(self, pattern: str) -> None:
        """Send SIGKILL to the processes in the container whose command line matches `pattern`: at least one."""
        assert self.exec("python3", "-c", KILL, pattern), pattern

    def wait_until_serving(self) -> None:
        """Wait for /health. Raises AssertionError with the log if the container ends instead."""

        def serves_or_ended() -> bool:
            return self.running.poll() is not None or status(f"{self.http_url}/health") == 200

        wait_until(serves_or_ended, f"{self.name} in service", SECONDS)
        assert self.running.poll() is None, self.log


@contextmanager
def running(line: str, folder: Path, *options: str, serves: bool = True) -> Iterator[Container]:
    """Yield the container of a `docker run` line (or of a run.sh) with more `options` of docker, run in `folder`.

    With `serves`, it is in service. It is removed at the end.
    """
    name = f"hfx-tests-{secrets.token_hex(3)}"
    more = " ".join(["--name", name, *options])
    line = re.sub(r"docker run\b", f"docker run {more}", line) if "docker run" in line else f"{line} {more}"
    output = folder / f"{name}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=folder, stdout=log, stderr=log, stdin=-3)
    container = Container(name, process, output)
    try:
        if serves:
            container.wait_until_serving()
        yield container
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False)
        process.wait(SECONDS)


def typed(lines: str, folder: Path) -> str:
    """Return the output of lines of a document, run by a shell in `folder` with `hfx` on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run("bash", "-euo", "pipefail", "-c", lines, cwd=folder, env={**os.environ, "PATH": path})


def answers(server: Any) -> None:
    """Check that the models of conftest.py answer correctly."""
    recites(server)
    assert infer(server.http_url, "sentiment", "A lovely garden, and kind people.") == "positive"


def recites(server: Any) -> None:
    """Check that the generator answers correctly through each interface."""
    expected = Recital().text("a", 60)
    for door, ask in DOORS.items():
        assert ask(server, Ask("stories", "a", {"max_tokens": 60})).text == expected, door


def status(url: str, token: str = "", context: Any = None) -> int:
    """Return the status of a GET, or 0 if nothing answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
