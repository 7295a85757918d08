"""Admission control of an encoder: refuses a request at once if the net would not answer it within a bound.

The bound is enforced here, before a text is tokenized, because the dynamic batcher's own queue policies make requests
wait for 0.5 s now and then (Triton 2.51; fixed in 26.08 by triton-inference-server/core #509). Triton's gauge of
pending requests gives the length of the net's queue, and Triton's counters give the speed of the net. No count is
lowered when the net ends a request, so a cancelled or failed request can't leave a count wrong.

The queue of the tokenizing step itself is bounded, too. Triton 2.51 cancels no request in it: the requests of callers
that have disconnected would be tokenized one after the other, while new ones arrive.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FEW_WAITING = 16  # requests; while no more wait, no reading is needed
READ_SECONDS = 0.05  # between two readings; a reading costs 0.7 to 2 ms
STALE_SECONDS = 1.0  # the age above which a reading refuses no request, and `prepare` waits for a new one
PATIENCE_SECONDS = 0.25  # the longest that `prepare` waits for a reading
MOST_KEPT = 10_000  # waiting requests whose numbers of rows are remembered
RETRY_SECONDS = 1.0  # until the next reading, if the server has no metrics
TIMEOUT_SECONDS = 5.0  # of a reading
MAX_BYTES = 16 << 20
RUNS_COUNTED = 8
KEPT = 0.9  # the weight of the tokenizing step's earlier batches at each new batch: one long text is not typical

PENDING = "nv_inference_pending_request_count"
ROWS, RUNS = "nv_inference_count", "nv_inference_exec_count"
REQUESTS, MICROSECONDS = "nv_inference_request_success", "nv_inference_compute_infer_duration_us"


@dataclass(frozen=True)
class Bound:
    """The limits of the queue: the number of waiting requests, and the seconds until a new request is answered.

    A limit of 0 means no limit. `batch` rows, a full batch, may wait whatever `seconds` is: callers that each wait
    for their answer fill a batch together. The `instances` of the tokenizing step share the requests that wait for it.
    """

    requests: int = 1024
    seconds: float = 3.0
    batch: int = 64
    instances: int = 1

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Bound:
        """Read max_batch_size, the instance groups and the parameters max_queue_size and max_queue_seconds.

        Raises ValueError for a parameter that is not a number.
        """
        parameters = {key: value["string_value"] for key, value in (config.get("parameters") or {}).items()}
        requests = int(parameters.get("max_queue_size", cls.requests))
        seconds = float(parameters.get("max_queue_seconds", cls.seconds))
        instances = sum(int(group.get("count", 1)) for group in config.get("instance_group") or [{}])
        return cls(requests, seconds, int(config["max_batch_size"]), max(1, instances))


@dataclass(frozen=True)
class NetLoad:
    """The load of the net in the server's metrics: pending requests; rows, runs, requests and time since its start.

    `microseconds` counts the time of a run once for each of its requests. `ahead` is the number of requests that wait
    for the tokenizing step.
    """

    pending: int
    rows: float
    runs: float
    requests: float
    microseconds: float
    ahead: int = 0


class Admission:
    """Takes requests for a net until they would wait for longer than `bound`; safe to use from any thread.

    `wake` is called when a new NetLoad is needed. The net's queue is first in, first out, so the waiting requests are
    those that were taken last, and their numbers of rows are known.
    """

    def __init__(self, bound: Bound, wake: Callable[[], None]) -> None:
        self._bound, self._wake = bound, wake
        self._lock = threading.Lock()
        self._waiting: deque[int] = deque()  # rows of the requests that were taken, the last one last
        self._rows = 0  # their sum
        self._taken = 0  # requests in all
        self._load: NetLoad | None = None
        self._read_at = float("-inf")
        self._ahead = 0  # requests that wait to be tokenized
        self._tokenized, self._tokenizing_seconds = 0.0, 0.0  # requests and time of the last batches
        self._rate = 0.0  # rows a second of the net; 0: not known yet
        self._run_seconds = 0.0
        self._throughput = 0.0  # rows a second of all instances of the net
        self._counted: tuple[float, float] | None = None  # time and the net's rows when it was last computed

    @property
    def taken(self) -> int:
        """The number of requests that were taken so far."""
        return self._taken

    def wants_reading(self, requests: int, now: float) -> bool:
        """Whether a new reading is needed to judge `requests` more requests."""
        return len(self._waiting) + requests > FEW_WAITING and now - self._read_at > STALE_SECONDS

    def take(self, rows: int, now: float, timeout: float = 0.0) -> bool:
        """Take a request of `rows` rows at the time `now` (time.monotonic), and return whether it was taken.

        Its caller waits for `timeout` seconds; 0 means any time.
        """
        with self._lock:
            if len(self._waiting) >= FEW_WAITING or self._ahead >= FEW_WAITING:
                self._wake()
            self._ahead = max(0, self._ahead - 1)
            if self._refuses(now, timeout):
                return False
            self._waiting.append(rows)
            self._rows += rows
            self._taken += 1
            if len(self._waiting) > MOST_KEPT:  # there are no readings
                self._rows -= self._waiting.popleft()
            return True

    def tokenized(self, requests: int, seconds: float) -> None:
        """Note that `requests` requests were tokenized in `seconds` seconds."""
        self._tokenized = KEPT * self._tokenized + requests
        self._tokenizing_seconds = KEPT * self._tokenizing_seconds + seconds

    def _refuses(self, now: float, timeout: float) -> bool:
        """Whether the queue is too long for a request whose caller waits for `timeout` seconds."""
        if now - self._read_at > STALE_SECONDS:
            return False
        if self._ahead >= FEW_WAITING and self._tokenized:
            share = self._tokenizing_seconds / self._tokenized / self._bound.instances
            if 0 < self._bound.seconds < self._ahead * share:
                return True
        if len(self._waiting) < FEW_WAITING:
            return False
        rate = max(self._rate, self._throughput)
        rows = max(0.0, self._rows - rate * (now - self._read_at))
        requests = len(self._waiting) * rows / max(1, self._rows)
        if 0 < self._bound.requests <= requests:
            return True
        # The rest of the current run, the runs of the waiting rows, and the run with the new request.
        seconds = 2 * self._run_seconds + rows / rate if rate else 0.0
        if 0 < timeout < seconds:
            return True
        return rows >= self._bound.batch and 0 < self._bound.seconds < seconds

    def update(self, load: NetLoad, taken: int, now: float) -> None:
        """Apply a reading made at the time `now`: `load` is the load after `taken` requests had been taken."""
        with self._lock:
            left = load.pending + self._taken - taken
            while len(self._waiting) > left:
                self._rows -= self._waiting.popleft()
            others = max(0, min(left, MOST_KEPT) - len(self._waiting))  # requests sent directly to the net
            self._waiting.extendleft([1] * others)
            self._rows += others
            if self._load is not None:
                self._learn_rate(self._load, load)
            self._learn_throughput(load, now)
            self._load, self._read_at, self._ahead = load, now, load.ahead

    def _learn_rate(self, before: NetLoad, after: NetLoad) -> None:
        runs, requests = after.runs - before.runs, after.requests - before.requests
        spent = 1e-6 * (after.microseconds - before.microseconds)
        if runs <= 0 or requests <= 0 or spent <= 0:
            return  # nothing was run, or the net was loaded anew
        run_seconds = spent / requests
        rate = (after.rows - before.rows) / runs / run_seconds
        self._rate = (self._rate + rate) / 2 if self._rate else rate
        self._run_seconds = (self._run_seconds + run_seconds) / 2 if self._run_seconds else run_seconds

    def _learn_throughput(self, load: NetLoad, now: float) -> None:
        """Measure the rate of all instances of the net: several instances do more than one run at a time."""
        if self._counted is None:
            self._counted = now, load.rows
        since, rows = self._counted
        if now - since >= max(1.0, RUNS_COUNTED * self._run_seconds):
            self._throughput = (load.rows - rows) / (now - since)
            self._counted = now, load.rows


class MetricsReader:
    """A thread that, when woken, reads the load of the tokenizing step `model` and of its net from `address`."""

    def __init__(self, model: str, address: tuple[str, int], bound: Bound) -> None:
        self.admission = Admission(bound, self._wake)
        self._address = address
        self._step, self._net = samples(model), samples(net_of(model))
        self._wanted, self._done = threading.Event(), threading.Event()
        self._failed = False
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def prepare(self, requests: int) -> None:
        """Wait for a new reading, for 0.25 s at most, if the last one can't judge `requests` more requests."""
        if self.admission.wants_reading(requests, time.monotonic()) and not self._failed:
            self._done.clear()
            self._wake()
            self._done.wait(PATIENCE_SECONDS)

    def _wake(self) -> None:
        self._wanted.set()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=TIMEOUT_SECONDS)
        while self._wanted.wait():
            self._wanted.clear()
            self._failed = not self._read(connection)
            self._done.set()
            if self._failed:
                connection.close()
            time.sleep(RETRY_SECONDS if self._failed else READ_SECONDS)

    def _read(self, connection: http.client.HTTPConnection) -> bool:
        taken = self.admission.taken
        try:
            connection.request("GET", "/metrics")
            load = net_load(self._net, self._step, connection.getresponse().read(MAX_BYTES))
        except (OSError, http.client.HTTPException):
            return False
        if load is not None:
            self.admission.update(load, taken, time.monotonic())
        return load is not None


def samples(model: str) -> re.Pattern[bytes]:
    """Return a pattern that finds the metrics of a model, of any version: name and value."""
    return re.compile(rb'^(nv_inference_\w+)\{model="%b",[^}]*\} (\S+)$' % re.escape(model).encode(), re.MULTILINE)


def net_load(net: re.Pattern[bytes], step: re.Pattern[bytes], metrics: bytes) -> NetLoad | None:
    """Return the load in the samples of the net and its tokenizing step; None without a gauge of pending requests."""
    values, ahead = _sums(net, metrics), _sums(step, metrics)
    if PENDING not in values:
        return None
    rows, runs, requests, microseconds = (values.get(name, 0.0) for name in (ROWS, RUNS, REQUESTS, MICROSECONDS))
    return NetLoad(int(values[PENDING]), rows, runs, requests, microseconds, int(ahead.get(PENDING, 0)))


def _sums(pattern: re.Pattern[bytes], metrics: bytes) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in pattern.findall(metrics):
        values[name.decode()] = values.get(name.decode(), 0.0) + float(value)
    return values


def metrics_address(arguments: list[str]) -> tuple[str, int] | None:
    """Return the address of the metrics of a tritonserver with these command-line arguments; None if it has none."""
    options: dict[str, str] = {}
    for at, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        options[name] = value if separator else "".join(arguments[at + 1 : at + 2])
    if options.get("--allow-metrics", "true").lower() in ("false", "0"):
        return None
    host = options.get("--metrics-address") or options.get("--http-address") or "127.0.0.1"
    try:
        return ("127.0.0.1" if host == "0.0.0.0" else host), int(options.get("--metrics-port", "8002"))
    except ValueError:
        return None


def server_arguments(pid: int) -> list[str]:
    """Return the command-line arguments of the process `pid`; an empty list if they can't be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return []


def net_of(model: str) -> str:
    """Return the name of the net of the tokenizing step `model`: NAME_tokenize becomes NAME_net; an ending is kept."""
    name, _, ending = model.rpartition("_tokenize")
    return f"{name}_net{ending}"
