"""The processes of a server on this machine: the cores that they keep busy, the memory that they hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Usage:
    """At a moment (`at`, time.monotonic): processor seconds of each process since it began, resident bytes of all."""

    at: float
    seconds: Mapping[int, float]
    memory: int


def usage(pid: int) -> Usage | None:
    """What `pid` and all its descendants use; None once it has ended."""
    seconds, memory = {}, 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return None
    for process in family:
        with suppress(psutil.Error), process.oneshot():  # a stub may end while we look
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
            memory += process.memory_info().rss
    return Usage(time.monotonic(), seconds, memory) if seconds else None


def busy_cores(looks: Sequence[Usage]) -> float | None:
    """Processor seconds a second from the first look to the last; None of fewer than two."""
    if not looks or looks[0].at == looks[-1].at:
        return None
    first = looks[0].seconds
    last = {pid: seconds for look in looks for pid, seconds in look.seconds.items()}  # what has ended keeps its own
    taken = sum(seconds - first.get(pid, 0.0) for pid, seconds in last.items())
    return taken / (looks[-1].at - looks[0].at)
