"""The processes of a server on this machine: its addresses, the cores they keep busy, the memory they hold.

Of a server elsewhere, or of another user, nothing is known, and nothing is guessed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil

from hfx.client.address import Address, parse_address

USUAL_GRPC, USUAL_OTHERS = 8001, (8000, 8002)
ANSWER_SECONDS = 1.0
# They listen for a server that is elsewhere, or in a container.
PROXIES = ("docker-proxy", "containerd-shim", "rootlessport", "sshd", "ssh", "kubectl")


@dataclass(frozen=True)
class Usage:
    """Processor seconds that the processes have taken since they began, and the resident bytes that they hold now."""

    seconds: dict[int, float]
    memory: int


@dataclass(frozen=True)
class Listening:
    """A server's process, and all TCP ports at which it listens."""

    pid: int
    ports: tuple[int, ...]


def listening(port: int) -> Listening | None:
    """The process of this user's that listens at `port`; None without one, or when it only hands on to another."""
    try:
        sockets = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid]
        owners = sorted(each.pid for each in sockets if each.laddr.port == port)
        process = psutil.Process(owners[0]) if owners else None  # of a parent and its forks, the parent
        if process is None or process.name().startswith(PROXIES):
            return None
        if process.uids().real != psutil.Process().uids().real:
            return None
    except psutil.Error:
        return None
    return Listening(process.pid, tuple(sorted(each.laddr.port for each in sockets if each.pid == process.pid)))


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


@dataclass(frozen=True)
class Place:
    """A server's other addresses and its process; what is not known is empty or None."""

    http_url: str = ""
    metrics_url: str = ""
    pid: int | None = None


def place(grpc_url: str) -> Place:
    """What can be found of the Triton that listens at `grpc_url`: an address counts only where Triton answers."""
    address = parse_address(grpc_url)
    if address.secure:
        return Place()
    here = listening(address.port) if _is_here(address) else None
    usual = USUAL_OTHERS if address.port == USUAL_GRPC else ()
    ports = [port for port in here.ports if port != address.port] if here else usual
    base = address.target.rpartition(":")[0]
    urls = [f"http://{base}:{port}" for port in ports]
    return Place(
        _first(urls, "/v2", b'"triton"'), _first(urls, "/metrics", b"nv_inference"), here.pid if here else None
    )


def _is_here(address: Address) -> bool:
    own = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    return address.is_loopback or address.host in own


def _first(urls: Iterable[str], path: str, words: bytes) -> str:
    """The first of `urls` whose `path` holds `words`; that of the metrics with its path."""
    for url in urls:
        with suppress(httpx.HTTPError):
            if words in httpx.get(url + path, timeout=ANSWER_SECONDS, trust_env=False).content:
                return url + path.removeprefix("/v2")
    return ""
