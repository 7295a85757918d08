"""Observing the server during a run: statistics, metrics, CPU time, memory and GPUs.

Threads take the samples, so that the load generator is not delayed. If a source fails, only its figures are missing,
and a note names it. Processes on another machine, or of another user, are not observed.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import httpx
import psutil

from hfx.client.address import parse_address
from hfx.errors import ServerError
from hfx.perf.loadgen.log import Progress, Target
from hfx.perf.machine import NVIDIA_SMI, joined_gpus, local_gpus
from hfx.perf.results import Gpu, ServerSide, Step
from hfx.perf.server import metrics
from hfx.perf.server.metrics import Metrics, with_engine
from hfx.perf.server.statistics import Snapshot, Statistics, steps

USUAL_GRPC, USUAL_METRICS = 8001, 8002
METRICS_ABOVE_HTTP = 2  # difference between Triton's usual metrics and HTTP ports
ANSWER_SECONDS = 1.0
# Processes that listen on behalf of a server in a container or on another machine.
PROXIES = ("docker-proxy", "containerd-shim", "rootlessport", "sshd", "ssh", "kubectl")


def located(target: Target) -> Target:
    """Return `target` with `metrics_url` and `pid` filled in if they can be found.

    A URL must serve Triton's metrics.
    """
    address = parse_address(target.grpc_url)
    if address.secure or (target.metrics_url and target.pid is not None):
        return target
    own = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    is_here = address.is_loopback or address.host in own
    usual = [USUAL_METRICS] if address.port == USUAL_GRPC else []
    pid, ports = (listening(address.port) if is_here else None) or (None, usual)
    places = [replace(address, port=port) for port in ports if port != address.port]
    if target.http_url:
        http = parse_address(target.http_url)
        places.append(replace(http, port=http.port + METRICS_ABOVE_HTTP))
    urls = (f"http://{place.target}/metrics" for place in places)
    metrics_url = target.metrics_url or next(filter(_has_metrics, urls), "")
    return replace(target, metrics_url=metrics_url, pid=pid if target.pid is None else target.pid)


def listening(port: int) -> tuple[int, list[int]] | None:
    """Return (pid, all its ports) of this user's process that listens on `port`; None if there is none, or a proxy."""
    try:
        sockets = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid]
        owners = sorted(each.pid for each in sockets if each.laddr.port == port)
        process = psutil.Process(owners[0]) if owners else None  # the parent process, if forks share the socket
        if process is None or process.name().startswith(PROXIES):
            return None
        if process.uids().real != psutil.Process().uids().real:
            return None
    except psutil.Error:
        return None
    return process.pid, sorted(each.laddr.port for each in sockets if each.pid == process.pid)


def _has_metrics(url: str) -> bool:
    with suppress(httpx.HTTPError, httpx.InvalidURL):
        return b"nv_inference" in httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False).content
    return False


# One run

PROCESS_SECONDS = 0.25
GPU_SECONDS = 0.5
LEAST_TAKEN = 0.05  # the fewest measurable CPU seconds, as Linux counts in hundredths
Value = TypeVar("Value")


@dataclass(frozen=True)
class Usage:
    """A sample at `at` (time.monotonic): CPU seconds of each process since its start, and all their resident bytes."""

    at: float
    seconds: Mapping[int, float]
    memory: int


class ServerWatch:
    """Observes a server while the block runs.

    Call `follow` with the load's progress, and `end` when the load has ended.

    Counters start with the block, or after the warm-up. CPU time and memory count from the first request that counts to
    the last answer. `failures` has a line for each source that failed.
    """

    def __init__(self, target: Target, warms_up: bool) -> None:
        self.failures: list[str] = []
        self._target, self._warms_up = target, warms_up
        self._statistics = Statistics(target.grpc_url)
        self._usage: list[Usage] = []
        self._lock = threading.Lock()  # a short load may end while the thread that takes the first samples still runs
        self._since, self._until = 0.0, math.inf  # only usage between these times counts
        self._members: tuple[str, ...] = ()
        self._before: Snapshot | None = None
        self._metrics: Metrics | None = None
        self._gpus: list[tuple[Gpu, ...]] = []
        self._counts = False
        self._beginning: threading.Thread | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._statistics)
        self._members = self._attempt(lambda: self._statistics.members(self._target.model), ())
        self._begin(self._statistics.settled)
        if self._target.pid is not None:
            self._open.enter_context(_repeated(self._sample_processes, PROCESS_SECONDS))
        if self._target.pid is not None and shutil.which(NVIDIA_SMI):
            self._open.enter_context(_repeated(lambda: self._gpus.append(local_gpus()), GPU_SECONDS))
        elif self._metrics is not None and metrics.gpus(self._metrics):
            self._open.enter_context(_repeated(self._sample_gpus, GPU_SECONDS))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def follow(self, progress: Progress) -> None:
        """Receive the progress of the load. Returns quickly."""
        if progress.phase != "warmup" and not self._counts:
            self._counts = True
            if self._warms_up:
                self._beginning = threading.Thread(target=self._begin, args=(self._statistics.snapshot,), daemon=True)
                self._beginning.start()
            else:  # nothing has been sent yet, but preparations have used CPU time
                self._begin_usage()
        # Not decided by `in_flight`, which may still be 0 for a burst that was just sent.
        if progress.phase == "draining" and progress.succeeded + progress.failed >= progress.sent:
            self._end_usage()

    def end(self, served: str, answered: int) -> ServerSide:
        """Return the server's side of the run. `served` is the model that gave the `answered` answers."""
        if self._beginning:
            self._beginning.join()
        self._end_usage()
        done, counters = self._steps(served, answered), self._counters(served, answered)
        samples = sorted(
            (each for each in self._usage if self._since <= each.at <= self._until), key=lambda each: each.at
        )
        return ServerSide(
            steps=with_engine(done, counters, self._target.model),
            cores=busy_cores(samples),
            memory=max((sample.memory for sample in samples), default=None),
            gpus=joined_gpus(self._gpus),
            counters=counters,
        )

    def _begin(self, read: Callable[[], Snapshot]) -> None:
        self._before = self._attempt(read, None)
        if self._target.metrics_url:
            self._metrics = self._attempt(lambda: metrics.read(self._target.metrics_url), None)
        self._begin_usage()

    def _begin_usage(self) -> None:
        with self._lock:
            self._gpus.clear()
            self._since, self._until = time.monotonic(), math.inf
            self._sample_processes()

    def _end_usage(self) -> None:
        with self._lock:
            if self._until == math.inf:
                self._sample_processes()
                self._until = time.monotonic()

    def _sample_processes(self) -> None:
        if self._target.pid is not None and (now := usage(self._target.pid)) is not None:
            self._usage.append(now)

    def _sample_gpus(self) -> None:
        self._gpus.append(metrics.gpus(self._attempt(lambda: metrics.read(self._target.metrics_url), ())))

    def _steps(self, served: str, answered: int) -> tuple[Step, ...]:
        before = self._before
        if before is None:
            return ()
        after = self._attempt(lambda: self._statistics.counted(served, before, answered), None)
        return () if after is None else steps(before, after, self._members)

    def _counters(self, served: str, answered: int) -> dict[str, float]:
        before, url, models = self._metrics, self._target.metrics_url, (self._target.model, served)
        if before is None:
            return {}
        return self._attempt(lambda: metrics.counted(url, before, models, answered), {})

    def _attempt(self, read: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return read()
        except ServerError as error:
            self.failures.append(error.message)
            return otherwise


def usage(pid: int) -> Usage | None:
    """Return the usage of the process `pid` and its descendants; None if the process has ended."""
    seconds, memory = {}, 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return None
    for process in family:
        with suppress(psutil.Error), process.oneshot():  # a Python stub may end meanwhile
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
            memory += process.memory_info().rss
    return Usage(time.monotonic(), seconds, memory) if seconds else None


def busy_cores(samples: Sequence[Usage]) -> float | None:
    """Return the mean number of busy cores between the first and the last sample; None if that is not measurable."""
    if not samples or samples[0].at == samples[-1].at:
        return None
    first = samples[0].seconds
    last = {
        pid: seconds for sample in samples for pid, seconds in sample.seconds.items()
    }  # ended processes keep their last value
    taken = sum(seconds - first.get(pid, 0.0) for pid, seconds in last.items())
    return taken / (samples[-1].at - samples[0].at) if taken >= LEAST_TAKEN else None


@contextmanager
def _repeated(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `work` every `seconds` in a thread while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
