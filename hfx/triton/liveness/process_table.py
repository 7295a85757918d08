"""The processes of this machine, with their CPU time, and Triton's processes among them, found by their arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
SERVER = "tritonserver"
# Fields of the stat file of proc(5), counted from the state: process group, user and system time, time of the start.
GROUP_FIELD, CPU_FIELDS, START_FIELD = 5 - 3, slice(14 - 3, 16 - 3), 22 - 3


@dataclass(frozen=True)
class Process:
    """A process, with the fields of its stat file (proc(5)) from the state on."""

    pid: int
    stat: Sequence[str]

    @property
    def group(self) -> int:
        """The process id of the leader of the process group."""
        return int(self.stat[GROUP_FIELD])

    @property
    def started(self) -> tuple[int, int]:
        """A key that sorts processes by their start time, and then by process id.

        Start times are in clock ticks since the machine booted. The process id alone would not do, as the ids start
        again from low numbers at times.
        """
        return int(self.stat[START_FIELD]), self.pid

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that the process has taken."""
        return sum(map(int, self.stat[CPU_FIELDS])) / os.sysconf("SC_CLK_TCK")

    @property
    def arguments(self) -> list[str]:
        """The command line, without an emulator that runs Triton's programs; [""] after the process has ended."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return [""]
        return words[1:] if words[1:] and words[1].endswith((STUB, SERVER)) else words

    @property
    def instance(self) -> str:
        """The model instance that a Python stub runs, such as NAME_tokenize_0_0; empty for other processes."""
        arguments = self.arguments
        is_stub = len(arguments) > STUB_INSTANCE_ARGUMENT and arguments[0].endswith(STUB)
        return arguments[STUB_INSTANCE_ARGUMENT] if is_stub else ""


def model_of(instance: str) -> str:
    """Return the model of an instance such as NAME_tokenize_0_0."""
    return instance.rsplit("_", 2)[0]


def read_process(pid: int) -> Process | None:
    """Read the process `pid` as it is now; None if there is none."""
    try:
        return Process(pid, Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split())
    except OSError:
        return None


def processes() -> list[Process]:
    """List every process that this process can see."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [process for process in map(read_process, pids) if process is not None]


def cpu_seconds(models: Sequence[str]) -> float:
    """Return the CPU time of the visible processes that run `models`: their stubs, or else the server.

    The server counts for each model without a stub. Without `models`, this is the time of all such processes. The
    processes of other servers are included, which can only make a probe more patient.
    """
    stubs: dict[str, float] = {}
    server = 0.0
    for process in processes():
        if instance := process.instance:
            model = model_of(instance)
            stubs[model] = stubs.get(model, 0.0) + process.cpu_seconds
        elif process.arguments[0].endswith(SERVER):
            server += process.cpu_seconds
    return sum(stubs.get(model, server) for model in models) if models else sum(stubs.values(), server)
