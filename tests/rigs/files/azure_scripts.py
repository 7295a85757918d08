"""Endpoints with scoring scripts, for the tests of Azure ML's commands."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.triton.liveness.process_table import processes
from tests.rigs.machine.waiting import wait_until

ENDPOINT = "texts-batch"
ECHO = """
    import os
    def init():
        print("ready")
    def run(files):
        return [os.path.basename(file) for file in files]
"""


@dataclass(frozen=True)
class Rig:
    """A workspace in a separate folder, and the command line on it."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def workspace(self) -> Path:
        return self.folder / ".hfx"

    def hfx(self, *words: str | Path) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of `hfx batch WORDS`."""
        code = main(["batch", "azure", *map(str, words), "--workspace", str(self.workspace)])
        return (code, *self.capsys.readouterr())

    def done(self, *words: str | Path) -> dict[str, Any]:
        """Return the JSON of a command that must succeed."""
        code, out, err = self.hfx(*words, "--json")
        assert code == 0, err
        return dict(json.loads(out))

    def deploy(self, script: str = ECHO, name: str = "first", yaml: str = "", default: bool = True) -> None:
        """Create a deployment of `script` with further lines of YAML, and the endpoint."""
        code = self.folder / f"code-{name}"
        code.mkdir(exist_ok=True)
        (code / "score.py").write_text(textwrap.dedent(script), encoding="utf-8")
        lines = f"name: {name}\nendpoint_name: {ENDPOINT}\ntype: model\n"
        lines += f"code_configuration: {{code: code-{name}, scoring_script: score.py}}\n{textwrap.dedent(yaml)}"
        file = self.folder / f"{name}.yml"
        file.write_text(lines, encoding="utf-8")
        if not (self.workspace / "endpoints" / ENDPOINT).exists():
            self.done("endpoint", "create", "--name", ENDPOINT)
        self.done("deployment", "create", "-f", file, *(["--set-default"] if default else []))

    def files(self, count: int, content: str = "text") -> Path:
        """Return a folder of `count` input files: 00.txt, 01.txt and so on."""
        folder = self.folder / "input"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:02d}.txt").write_text(content, encoding="utf-8")
        return folder

    def invoke(self, *words: str | Path) -> dict[str, Any]:
        """Return a job as soon as it has started."""
        return self.done("invoke", ENDPOINT, *words)

    def wait(self, job: str) -> dict[str, Any]:
        """Return a job once it no longer runs."""
        return wait_until(lambda: (value := self.show(job))["status"] != "Running" and value, "the end of the job")

    def show(self, job: str) -> dict[str, Any]:
        return self.done("job", "show", job)

    def log(self, job: str) -> str:
        """Return the log of the job and the output of its scripts."""
        logs = sorted((self.workspace / "jobs" / job / "logs").iterdir())
        return "".join(log.read_text(encoding="utf-8") for log in logs)

    def wait_for_parts(self, job: str, count: int) -> None:
        parts = self.workspace / "jobs" / job / "parts"
        wait_until(lambda: len(list(parts.glob("[0-9]*"))) >= count, "parts")

    def kill(self, job: str) -> None:
        """Kill the process of a job, and wait until it no longer holds the job."""
        command = ["hfx.batch.azure.runner", str(self.workspace / "jobs" / job)]
        # A process that it starts looks like itself until it runs its own program.
        found = [each for each in processes() if each.arguments[-3:-1] == command]
        process = min(found, key=lambda each: each.started)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: self.show(job)["status"] != "Running", "the end of the process")
