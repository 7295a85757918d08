"""What shows that a model needs more pods: metrics, how Prometheus adds them up, and how much of each a pod may have.

Generators: Triton's queue time is useless, as `execute` hands requests over at once. Their engine says how many
requests wait and how many slots are used. Encoders: seconds of waiting a second, over the members, are the requests
that wait on average (Little's law). No signal is the processor's load: a full batch keeps it as busy as a long queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hfx.deploy.deployment import DeployedModel, Deployment, Figure

RATE_WINDOW = "1m"
SLOTS_SHARE = 0.8  # of a pod's slots: then another pod starts, before requests have to wait
QUEUE_SHARE = 0.25  # of a pod's slots, as requests that wait: each waits for a quarter of a request's own time
BATCH_SHARE = 0.5  # of the largest batch, as requests that wait: fuller batches are cheaper, a second one only waits


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of Prometheus: `name` is that of the custom metrics API, `series` what Triton's /metrics has.

    `is_rate`: the series counts microseconds, and what it grows by in a second is the figure.
    """

    name: str
    series: str
    is_rate: bool = False

    def query(self, labels: str, by: str = "") -> str:
        """The PromQL of the figure over the series with `labels`, summed up, or by the labels `by`."""
        series = f"{self.series}{{{labels}}}"
        grouped = f" by ({by})" if by else ""
        return f"sum(rate({series}[{RATE_WINDOW}])){grouped} / 1e6" if self.is_rate else f"sum({series}){grouped}"


QUEUE = Metric("hfx_queue_length", "hfx_queue_length")
SLOTS = Metric("hfx_slots_used", "hfx_slots_used")
WAITING = Metric("hfx_encoder_waiting", "nv_inference_queue_duration_us", is_rate=True)


@dataclass(frozen=True, slots=True)
class Signal:
    """One figure of one model: `models` are the values of the label `model`, `target` what a pod may have of it."""

    metric: Metric
    models: tuple[str, ...]
    target: Figure

    def query(self, labels: str) -> str:
        """The PromQL of the figure over all pods with `labels`."""
        return self.metric.query(f'model=~"{"|".join(self.models)}",{labels}')


def signals(deployment: Deployment, wait: float, throughput: Mapping[str, float]) -> tuple[Signal, ...]:
    """The signals of every model. `throughput`: requests a second of a pod by model, where they were measured."""
    return tuple(
        signal
        for model in deployment.models
        for signal in (_generator if model.is_generator else _encoder)(model, wait, throughput.get(model.name))
    )


def metrics(wanted: tuple[Signal, ...]) -> tuple[Metric, ...]:
    """The metrics of signals, each once."""
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
    members = tuple(folder for folder in model.manifest.folders if folder != model.name)
    batch = model.needs.batch
    waiting = _by_wait(wait, throughput) or Figure(
        max(1, int(BATCH_SHARE * batch)), f"{BATCH_SHARE} x the largest batch, {batch}; --from computes it"
    )
    return (Signal(WAITING, members, waiting),)


def _by_wait(wait: float, throughput: float | None, most: int | None = None) -> Figure | None:
    """The requests that wait when each waits for `wait` seconds, by Little's law; None where nothing was measured.

    `most`: more are not waited for, as the queue refuses them.
    """
    if throughput is None:
        return None
    source = f"{wait:g} s of waiting (--wait) x {throughput:.1f} requests/s measured of a pod"
    target = max(1, int(wait * throughput))
    if most is not None and target > most:
        return Figure(max(1, most), f"half of max_queue_size; {source} is more")
    return Figure(target, source)
