"""Processor time of a server's processes, from /proc. Knows nothing of what they do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.serve_model import NAME
from hfx import names
from hfx.triton import EmbeddedServer

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds of a processor that each part of the server has used."""

    server: float
    engine: float
    relay: float

    def since(self, before: Cost) -> Cost:
        """What was used between two readings."""
        return Cost(self.server - before.server, self.engine - before.engine, self.relay - before.relay)

    @property
    def total(self) -> float:
        """Of all processes."""
        return self.server + self.engine + self.relay


def cost(server: EmbeddedServer) -> Cost:
    """What the server has used since it started."""
    stubs = server.stubs()
    return Cost(
        server=_seconds(server.pid),
        engine=_of_model(stubs, NAME + names.STREAM_SUFFIX),
        relay=_of_model(stubs, NAME),
    )


def _of_model(stubs: Mapping[str, list[int]], model: str) -> float:
    """Instances are called MODEL_0_0."""
    return sum(_seconds(pid) for name, pids in stubs.items() if name.rsplit("_", 2)[0] == model for pid in pids)


def _seconds(pid: int) -> float:
    """User and system time of all threads, those that have ended too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK
