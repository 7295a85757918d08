"""The processes of this machine: those of Triton among them, by their arguments, and their CPU time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STUB = "triton_python_backend_stub"
STUB_INSTANCE_ARGUMENT = 8  # the stub's argv: …, instance name such as NAME_tokenize_0_0, …
SERVER = "tritonserver"
# Of proc(5)'s stat, counted from the state: process group, user and system time, time of the start.
GROUP_FIELD, CPU_FIELDS, START_FIELD = 5 - 3, slice(14 - 3, 16 - 3), 22 - 3


@dataclass(frozen=True)
class Process:
    """A process, with the fields of proc(5)'s stat from the state on."""

    pid: int
    stat: Sequence[str]

    @property
    def group(self) -> int:
        """The process id of the leader of its group."""
        return int(self.stat[GROUP_FIELD])

    @property
    def started(self) -> tuple[int, int]:
        """Sorts processes by their start, in ticks since the machine's; process ids begin anew at times."""
        return int(self.stat[START_FIELD]), self.pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has taken."""
        return sum(map(int, self.stat[CPU_FIELDS])) / os.sysconf("SC_CLK_TCK")

    @property
    def arguments(self) -> list[str]:
        """Its command line; one empty string once it has ended."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return [""]

    @property
    def instance(self) -> str:
        """The model instance that it runs, such as NAME_tokenize_0_0; an empty string for no Python stub."""
        arguments = self.arguments
        is_stub = len(arguments) > STUB_INSTANCE_ARGUMENT and arguments[0].endswith(STUB)
        return arguments[STUB_INSTANCE_ARGUMENT] if is_stub else ""


def model_of(instance: str) -> str:
    """The model of an instance such as NAME_tokenize_0_0."""
    return instance.rsplit("_", 2)[0]


def read_process(pid: int) -> Process | None:
    """The process `pid` as it is now; None when there is none."""
    try:
        return Process(pid, Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split())
    except OSError:
        return None


def processes() -> list[Process]:
    """Every process that this one can see."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [process for process in map(read_process, pids) if process is not None]


def cpu_seconds(models: Sequence[str]) -> float:
    """CPU time of the visible processes that run `models`: their stubs, or the server without stubs.

    Without `models` it is that of every such process. Another server's are counted too: they can only add patience.
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
