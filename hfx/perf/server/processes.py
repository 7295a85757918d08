"""The processes of a server on this machine: the cores that they keep busy, the memory that they hold."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Usage:
    """Processor seconds that the processes have taken since they began, and the resident bytes that they hold now."""

    seconds: dict[int, float]
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
    return Usage(seconds, memory) if seconds else None


class Busy:
    """Looks now and then at the processes of a server: `cores` kept busy since the first look, most `memory`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._alone = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Forget all looks: what counts begins now."""
        with self._alone:
            self.memory: int | None = None
            self._began = self._last = time.monotonic()
            self._first: dict[int, float] | None = None
            self._now: dict[int, float] = {}
            self._finished = False
            self._look()

    def look(self) -> None:
        """Take one look."""
        with self._alone:
            if not self._finished:
                self._look()

    def finish(self) -> None:
        """Take the last look."""
        self.look()
        self._finished = True

    def _look(self) -> None:
        found = usage(self._pid)
        if found is None:
            return
        self._last = time.monotonic()
        if self._first is None:
            self._began, self._first = self._last, found.seconds
        self._now |= found.seconds  # what has ended meanwhile keeps what it had taken
        self.memory = max(self.memory or 0, found.memory)

    @property
    def cores(self) -> float | None:
        """Processor seconds a second; None before the second look."""
        if self._first is None or self._last <= self._began:
            return None
        taken = sum(seconds - self._first.get(pid, 0.0) for pid, seconds in self._now.items())
        return taken / (self._last - self._began)
