"""The size and number of pods, and the metrics for the autoscaler, from manifests and measured loads.

Every number is a Figure with its source, which the manifests repeat in a comment.

For generators, the engine reports the waiting requests and the used slots. Triton's queue time is useless, because
`execute` accepts requests at once. For encoders, the queue time that accrues in a second, summed over the members, is
the average number of waiting requests (Little's law). The load of the processor is no signal: a full batch keeps it as
busy as a long queue does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hfx.deploy.deployment import MEMORY_STEP, DeployedModel, Deployment, Figure, mib, with_requests
from hfx.deploy.docker import STOP_MARGIN_SECONDS, stop_seconds
from hfx.deploy.options import Scale, check_range
from hfx.errors import UsageError

# Signals of an autoscaler


RATE_WINDOW = "1m"
SLOTS_SHARE = 0.8  # share of used slots at which another pod starts, before requests have to wait
QUEUE_SHARE = 0.25  # waiting requests per slot: a request then waits for a quarter of the time that it takes itself
BATCH_SHARE = 0.5  # waiting requests per row of the largest batch: full batches are cheap, a second batch only waits


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `name` is its name in the custom metrics API, `series` its name in Triton's /metrics.

    With `is_rate`, the series counts microseconds, and the metric is its increase in seconds per second.
    """

    name: str
    series: str
    is_rate: bool = False

    def query(self, labels: str, by: str = "") -> str:
        """Return PromQL for the sum over the series with `labels`, per value of the labels `by` (empty: one sum)."""
        series = f"{self.series}{{{labels}}}"
        grouped = f" by ({by})" if by else ""
        return f"sum(rate({series}[{RATE_WINDOW}])){grouped} / 1e6" if self.is_rate else f"sum({series}){grouped}"


QUEUE = Metric("hfx_queue_length", "hfx_queue_length")
SLOTS = Metric("hfx_slots_used", "hfx_slots_used")
WAITING = Metric("hfx_encoder_waiting", "nv_inference_queue_duration_us", is_rate=True)


@dataclass(frozen=True, slots=True)
class Signal:
    """A metric of one model. `models` are the values of the label `model`; `target` is the value to keep per pod."""

    metric: Metric
    models: tuple[str, ...]
    target: Figure

    def query(self, labels: str) -> str:
        """Return PromQL for the metric, summed over all pods with `labels`."""
        return self.metric.query(f'model=~"{"|".join(self.models)}",{labels}')


def signals(deployment: Deployment, wait: float, throughput: Mapping[str, float]) -> tuple[Signal, ...]:
    """Return the signals of all models.

    `wait` is the allowed queueing time in s; `throughput` maps models to measured requests/s.
    """
    return tuple(
        signal
        for model in deployment.models
        for signal in (_generator if model.is_generator else _encoder)(model, wait, throughput.get(model.name))
    )


def metrics(wanted: tuple[Signal, ...]) -> tuple[Metric, ...]:
    """Return the metrics of `wanted`, each of them once."""
    return tuple(dict.fromkeys(signal.metric for signal in wanted))


def _generator(model: DeployedModel, wait: float, throughput: float | None) -> tuple[Signal, ...]:
    slots = model.needs.slots
    used = Figure(max(1, int(SLOTS_SHARE * slots)), f"{SLOTS_SHARE} x {slots} slots of {model.name}")
    queue = _by_wait(wait, throughput, model.needs.queue // 2) or Figure(
        math.ceil(QUEUE_SHARE * slots),
        f"{QUEUE_SHARE} x {slots} slots: requests wait for {QUEUE_SHARE} of one's own time; --from computes it",
    )
    return Signal(QUEUE, (model.name,), queue), Signal(SLOTS, (model.name,), used)


def _encoder(model: DeployedModel, wait: float, throughput: float | None) -> tuple[Signal, ...]:
    steps = tuple(folder for folder in model.manifest.folders if folder != model.name)
    members = (model.name,) if model.is_native else steps
    batch = model.needs.batch
    waiting = _by_wait(wait, throughput) or Figure(
        max(1, int(BATCH_SHARE * batch)), f"{BATCH_SHARE} x the largest batch, {batch}; --from computes it"
    )
    return (Signal(WAITING, members, waiting),)


def _by_wait(wait: float, throughput: float | None, most: int | None = None) -> Figure | None:
    """Return the number of waiting requests if each waits for `wait` seconds (Little's law); None if not measured.

    `most` is an upper bound, because the queue refuses more requests.
    """
    if throughput is None:
        return None
    source = f"{wait:g} s of waiting (--wait) x {throughput:.1f} requests/s measured of a pod"
    target = max(1, int(wait * throughput))
    if most is not None and target > most:
        return Figure(max(1, most), f"half of max_queue_size; {source} is more")
    return Figure(target, source)


# Sizes


GROWTH_REPLICAS = 4  # the default of --max-replicas is this number times --replicas
PLANNED_SHARE = 0.7  # share of the measured throughput; the rest is for peaks until a new pod serves
MEMORY_RESERVE = 1.25  # factor of the measured resident memory
FRONT_SECONDS = 0.00025  # processor time that the HTTP front takes for a request (docs/front.md)
LOAD_SECONDS = 300  # `hfx serve --timeout`
COPY_BYTES_PER_SECOND = 50 << 20  # a slow disk: the start hashes and copies every file
LOG_BYTES = 4 * (3 * 16 << 20)  # logs of tritonserver and of failed starts
LARGEST_REPLICAS = 1000
LARGEST_SECONDS = 3600
LARGEST_WAIT = 2.0  # encoders refuse requests that would wait for 3 s (max_queue_seconds)
PROBE_SECONDS = 5
LIVENESS_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of `hfx perf run` for one model, under the highest load for which it answered.

    `cores` and `memory` (bytes) are those of tritonserver and its Python processes; None for a server on another
    machine.
    """

    model: str
    requests_per_second: float
    cores: float | None
    memory: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Sizing:
    """The size and number of pods. `memory`, `shared_memory` and `disk` are in MiB, and times in seconds."""

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
        """Whether the number of pods can change."""
        return self.max_replicas.value > self.replicas.value

    @property
    def start_probes(self) -> int:
        """The number of startup probes that may fail."""
        return -(-self.start.value // PROBE_SECONDS)

    @property
    def liveness_probes(self) -> int:
        """The number of liveness probes that may fail: `hfx serve` may have to restart Triton and load the models."""
        return -(-self.start.value // LIVENESS_SECONDS)


def size(deployment: Deployment, scale: Scale, measured: Mapping[str, Measured]) -> Sizing:
    """Return the sizing of `deployment`. `measured` maps models to figures, and may lack models. Raises UsageError."""
    check_range("--replicas", scale.replicas, 1, LARGEST_REPLICAS)
    check_range("--max-replicas", scale.max_replicas, scale.replicas, LARGEST_REPLICAS)
    check_range("--pre-stop", scale.pre_stop, 0, LARGEST_SECONDS)
    check_range("--wait", scale.wait, 0.01, LARGEST_WAIT)
    check_range("--rate", scale.rate or None, 0.001, 1e9)
    replicas, drain = _replicas(deployment, scale, measured), deployment.drain
    return Sizing(
        millicores=_millicores(deployment, measured),
        memory=_memory(deployment, measured),
        shared_memory=Figure(deployment.shared_memory.value >> 20, deployment.shared_memory.source),
        disk=_disk(deployment),
        replicas=replicas,
        max_replicas=_max_replicas(scale, replicas.value),
        start=_start(deployment),
        pre_stop=Figure(scale.pre_stop, "until every proxy of the cluster has learned that this pod takes no more"),
        grace=Figure(
            scale.pre_stop + stop_seconds(drain),
            f"preStop {scale.pre_stop} + 2 x drain {drain} (HTTP, then gRPC) + margin {STOP_MARGIN_SECONDS}",
        ),
        signals=signals(deployment, scale.wait, {name: each.requests_per_second for name, each in measured.items()}),
    )


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
    """Return the container's memory in MiB."""
    estimate = deployment.memory
    known = [(run.memory, run) for name in deployment.names if (run := measured.get(name)) and run.memory]
    if known:
        memory, run = max(known, key=lambda pair: pair[0])
        needed = with_requests(
            int(MEMORY_RESERVE * memory),
            deployment.shared_memory.value,
            f"{MEMORY_RESERVE} x {mib(memory)}",
            f"measured of {run.model} ({run.source})",
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
