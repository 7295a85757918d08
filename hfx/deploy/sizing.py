"""How large a pod is and how many there are: from manifests, and from measured loads where there are results.

Every number is a Figure with its source, which the manifests repeat in a comment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hfx.deploy.autoscaling import Signal, signals
from hfx.deploy.deployment import MEMORY_STEP, Deployment, Figure, mib, with_requests
from hfx.deploy.docker import STOP_MARGIN_SECONDS, stop_seconds
from hfx.errors import UsageError

GROWTH_REPLICAS = 4  # times the least number of pods, where --max-replicas is not given
PLANNED_SHARE = 0.7  # of the measured throughput: the rest is for peaks until a new pod serves
MEMORY_RESERVE = 1.25  # times the measured resident memory
FRONT_SECONDS = 0.00025  # processor time that the HTTP front takes for a request (docs/front.md)
LOAD_SECONDS = 300  # `hfx serve --timeout`
COPY_BYTES_PER_SECOND = 50 << 20  # a slow disk: the start hashes and copies every file
LOG_BYTES = 4 * (3 * 16 << 20)  # logs of tritonserver, and of starts that failed
LARGEST_REPLICAS = 1000
LARGEST_SECONDS = 3600
LARGEST_WAIT = 2.0  # encoders refuse what would wait for 3 s (max_queue_seconds)
PROBE_SECONDS = 5
LIVENESS_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """What `hfx perf run` measured of one model under the highest load that it answered.

    `cores` and `memory` are of tritonserver and its Python processes; None where the server was elsewhere.
    """

    model: str
    requests_per_second: float
    cores: float | None
    memory: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods a person wants, and how long requests may wait.

    `rate` is the requests a second that all pods must answer; None where it is not known. `wait` is in seconds.
    """

    replicas: int = 2
    max_replicas: int | None = None
    rate: float | None = None
    wait: float = 0.5
    pre_stop: int = 10


@dataclass(frozen=True, slots=True)
class Sizing:
    """One pod and the number of pods. `millicores`; `memory`, `shared_memory` and `disk` in MiB; times in seconds."""

    millicores: Figure
    memory: Figure
    shared_memory: Figure
    disk: Figure
    replicas: Figure
    max_replicas: Figure
    start: Figure
    pre_stop: Figure
    grace: Figure
    signals: tuple[Signal, ...]

    @property
    def scales(self) -> bool:
        """Whether the number of pods changes."""
        return self.max_replicas.value > self.replicas.value

    @property
    def start_probes(self) -> int:
        """How many startup probes may fail."""
        return -(-self.start.value // PROBE_SECONDS)

    @property
    def liveness_probes(self) -> int:
        """How many liveness probes may fail: a server that `hfx serve` starts again loads its models meanwhile."""
        return -(-self.start.value // LIVENESS_SECONDS)


def size(deployment: Deployment, scale: Scale, measured: Mapping[str, Measured]) -> Sizing:
    """The sizing of `deployment`; `measured` by model, may have some of the models or none. Raises UsageError."""
    _check(scale)
    replicas = _replicas(deployment, scale, measured)
    return Sizing(
        millicores=_millicores(deployment, measured),
        memory=_memory(deployment, measured),
        shared_memory=Figure(deployment.shared_memory.value >> 20, deployment.shared_memory.source),
        disk=_disk(deployment),
        replicas=replicas,
        max_replicas=_max_replicas(scale, replicas.value),
        start=_start(deployment),
        pre_stop=Figure(scale.pre_stop, "until every proxy of the cluster has learned that this pod takes no more"),
        grace=_grace(deployment, scale),
        signals=signals(deployment, scale.wait, {name: each.requests_per_second for name, each in measured.items()}),
    )


def _check(scale: Scale) -> None:
    most = scale.replicas if scale.max_replicas is None else scale.max_replicas
    ranges = (
        ("--replicas", scale.replicas, 1, LARGEST_REPLICAS),
        ("--max-replicas", most, scale.replicas, LARGEST_REPLICAS),
        ("--pre-stop", scale.pre_stop, 0, LARGEST_SECONDS),
        ("--wait", scale.wait, 0.01, LARGEST_WAIT),
        ("--rate", scale.rate or 1.0, 0.001, 1e9),
    )
    for option, value, low, high in ranges:
        if not low <= value <= high:
            raise UsageError(f"{option} {value:g} is out of range.", f"Choose {low:g} to {high:g}.")


# A pod


def _millicores(deployment: Deployment, measured: Mapping[str, Measured]) -> Figure:
    threads = deployment.cpus
    runs = [measured[name] for name in deployment.names if name in measured]
    known = [(run, run.cores) for run in runs if run.cores is not None]
    if len(known) < len(deployment.models) or threads.source == "--cpus":
        return Figure(1000 * threads.value, threads.source)
    cores = sum(cores + FRONT_SECONDS * run.requests_per_second for run, cores in known)
    sources = "; ".join(f"{cores:.2f} cores measured of {run.model} ({run.source})" for run, cores in known)
    front = f"{1000 * FRONT_SECONDS:g} ms a request for the front"
    return Figure(max(100, 100 * math.ceil(10 * cores)), f"{sources}; + {front}")


def _memory(deployment: Deployment, measured: Mapping[str, Measured]) -> Figure:
    """The container's, in MiB."""
    estimate = deployment.memory
    known = [(run.memory, run) for name in deployment.names if (run := measured.get(name)) and run.memory]
    if known:
        memory, run = max(known, key=lambda pair: pair[0])
        needed = with_requests(
            int(MEMORY_RESERVE * memory), f"{MEMORY_RESERVE} x {mib(memory)}", f"measured of {run.model} ({run.source})"
        )
        if len(deployment.models) == 1 or estimate.value <= needed.value:
            estimate = needed
    return Figure(estimate.value >> 20, estimate.source)


def _disk(deployment: Deployment) -> Figure:
    files = _file_bytes(deployment)
    total = -(-(2 * files + LOG_BYTES) // MEMORY_STEP) * MEMORY_STEP
    source = f"2 x the models' files, {mib(files)} (a reload holds both), + {mib(LOG_BYTES)} of logs"
    return Figure(total >> 20, source)


def _file_bytes(deployment: Deployment) -> int:
    return sum(entry.size for model in deployment.models for entry in model.manifest.files.values())


# Times


def _start(deployment: Deployment) -> Figure:
    copying = -(-_file_bytes(deployment) // COPY_BYTES_PER_SECOND)
    source = (
        f"{LOAD_SECONDS} s that `hfx serve` lets models load + {copying} s to hash and copy"
        f" {mib(_file_bytes(deployment))} at {COPY_BYTES_PER_SECOND >> 20} MiB/s"
    )
    return Figure(LOAD_SECONDS + copying, source)


def _grace(deployment: Deployment, scale: Scale) -> Figure:
    drain = deployment.drain
    source = f"preStop {scale.pre_stop} + 2 x drain {drain} (HTTP, then gRPC) + margin {STOP_MARGIN_SECONDS}"
    return Figure(scale.pre_stop + stop_seconds(drain), source)


# The number of pods


def _replicas(deployment: Deployment, scale: Scale, measured: Mapping[str, Measured]) -> Figure:
    if scale.rate is None:
        return Figure(scale.replicas, "--replicas")
    run = measured.get(deployment.names[0])
    if len(deployment.models) > 1 or run is None:
        raise UsageError(
            "--rate needs one model, and what a pod of it answers.",
            "Give one NAME and --from F.json of `hfx perf run`.",
        )
    needed = math.ceil(scale.rate / (PLANNED_SHARE * run.requests_per_second))
    source = f"--rate {scale.rate:g} / ({PLANNED_SHARE} x {run.requests_per_second:.1f} requests/s of {run.source})"
    if needed > LARGEST_REPLICAS:
        raise UsageError(f"--rate {scale.rate:g} takes {needed} pods.", f"At most {LARGEST_REPLICAS} can be written.")
    return (
        Figure(needed, source) if needed > scale.replicas else Figure(scale.replicas, f"--replicas; {source} is less")
    )


def _max_replicas(scale: Scale, replicas: int) -> Figure:
    if scale.max_replicas is None:
        return Figure(
            min(GROWTH_REPLICAS * replicas, LARGEST_REPLICAS), f"{GROWTH_REPLICAS} x the least number of pods"
        )
    if scale.max_replicas < replicas:
        raise UsageError(f"--max-replicas {scale.max_replicas} is less than {replicas}.", f"Choose {replicas} or more.")
    return Figure(scale.max_replicas, "--max-replicas")
