"""Containers of the tests: started by a line as the documents write it, watched, killed in parts, removed."""

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
    """A container and the `docker run` that waits for its end; `http_url` and `grpc_url` are where it is published."""

    name: str
    running: subprocess.Popen[bytes]
    output: Path
    http_url: str = HTTP
    grpc_url: str = GRPC

    @property
    def log(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace")

    @property
    def exit_code(self) -> int:
        """The exit code, once it has ended."""
        return self.running.wait(SECONDS)

    def state(self, template: str) -> Any:
        """What `docker inspect` says of it."""
        return json.loads(run("docker", "inspect", "--format", f"{{{{json {template}}}}}", self.name))

    def exec(self, *command: str) -> str:
        """What a command in it prints."""
        return run("docker", "exec", self.name, *command)

    def kill(self, pattern: str) -> None:
        """SIGKILL to the processes in it whose command line has `pattern`: at least one."""
        assert self.exec("python3", "-c", KILL, pattern), pattern

    def wait_until_serving(self) -> None:
        """Return when /health says so. Raises AssertionError with the log when it ends instead."""

        def serves_or_ended() -> bool:
            return self.running.poll() is not None or status(f"{self.http_url}/health") == 200

        wait_until(serves_or_ended, f"{self.name} in service", SECONDS)
        assert self.running.poll() is None, self.log


@contextmanager
def running(line: str, folder: Path, *options: str, serves: bool = True) -> Iterator[Container]:
    """The container of a line with `docker run` (or of a run.sh), with more `options` of docker, typed in `folder`.

    With `serves` it is in service. It is removed at the end.
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
    """What lines of a document print, typed in a shell in `folder`, where `hfx` is on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run("bash", "-euo", "pipefail", "-c", lines, cwd=folder, env={**os.environ, "PATH": path})


def answers(server: Any) -> None:
    """Assert that the models of conftest.py answer as they must."""
    recites(server)
    assert infer(server.http_url, "sentiment", "A lovely garden, and kind people.") == "positive"


def recites(server: Any) -> None:
    """Assert that the generator does, in each way to ask it."""
    expected = Recital().text("a", 60)
    for door, ask in DOORS.items():
        assert ask(server, Ask("stories", "a", {"max_tokens": 60})).text == expected, door


def status(url: str, token: str = "", context: Any = None) -> int:
    """The status of a GET; 0 where nothing answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
