"""The metrics of an engine in Prometheus' names and units, and the thread that publishes them."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..engine.core import Histogram, Stats
from ..errors import REASONS

Kind = Literal["counter", "gauge"]
Labels = tuple[tuple[str, str], ...]

STATE_CHECKS = "Checks of the state, by result: every 1,000 steps, or every 1,000 runs for several requests"
SECONDS = 0.2
SLOW = 5  # rounds between two publications of the histograms, which have many lines


@dataclass(frozen=True)
class Sample:
    """One line on /metrics, without the model's label."""

    name: str
    description: str
    kind: Kind
    labels: Labels
    value: float


_VALUES: tuple[tuple[str, Kind, str, Callable[[Stats], float]], ...] = (
    ("hfx_slots_used", "gauge", "Slots in use", lambda stats: stats.slots_used),
    ("hfx_slots_free", "gauge", "Free slots", lambda stats: stats.slots_free),
    ("hfx_queue_length", "gauge", "Requests that wait for slots", lambda stats: stats.waiting),
    ("hfx_queue_limit", "gauge", "Requests that may wait for slots", lambda stats: stats.most_waiting),
    ("hfx_generated_tokens_total", "counter", "Tokens generated", lambda stats: stats.tokens),
    ("hfx_draft_tokens_total", "counter", "Guessed tokens that were run", lambda stats: stats.draft_tokens),
    ("hfx_accepted_tokens_total", "counter", "Guessed tokens that were correct", lambda stats: stats.accepted_tokens),
    ("hfx_prompt_tokens_total", "counter", "Tokens of prompts and sources read", lambda stats: stats.prompt_tokens),
    (
        "hfx_cached_prompt_tokens_total",
        "counter",
        "Prompt tokens taken from the prefix cache",
        lambda stats: stats.cached_tokens,
    ),
    ("hfx_steps_total", "counter", "Decode steps", lambda stats: stats.steps),
    ("hfx_step_seconds_total", "counter", "Seconds spent in decode steps", lambda stats: stats.step_seconds),
    ("hfx_captured_steps_total", "counter", "Steps that replayed a CUDA graph", lambda stats: stats.steps_captured),
    (
        "hfx_early_steps_total",
        "counter",
        "Steps that began on a GPU before the host had the tokens of the last one",
        lambda stats: stats.steps_ahead,
    ),
    (
        "hfx_captured_prompt_runs_total",
        "counter",
        "Runs of prompts or sources that replayed a CUDA graph",
        lambda stats: stats.prompts_captured,
    ),
    (
        "hfx_gpu_cache_bytes",
        "gauge",
        "GPU memory of the caches of keys and values (0 on CPU)",
        lambda stats: stats.device_cache_bytes,
    ),
    ("hfx_requests_completed_total", "counter", "Requests completed successfully", lambda stats: stats.completed),
    ("hfx_requests_cancelled_total", "counter", "Requests cancelled by their callers", lambda stats: stats.cancelled),
    ("hfx_requests_failed_total", "counter", "Requests that ended with an error", lambda stats: stats.failed),
    ("hfx_deadline_exceeded_total", "counter", "Requests whose deadline passed", lambda stats: stats.deadlines),
)
_CHECKS = ("hfx_state_checks_total", STATE_CHECKS)
_PROMPT_RUNS = ("hfx_prompt_runs_total", "Runs of prompts or sources on a GPU, by their rows and width in tokens")
_NOT_CAPTURED = ("hfx_capture_refused", "1 if steps on a GPU are not captured as CUDA graphs, by reason")
_REASON_LENGTH = 200
_REFUSED = ("hfx_requests_refused_total", "Requests that the model refused, by reason")
_FIRST_TOKEN = (
    "hfx_time_to_first_token_seconds",
    "Seconds from a request's submission to its first token (of beams: to their end)",
)
_INTER_TOKEN = ("hfx_inter_token_seconds", "Seconds from one token of a request to its next")


def counts(stats: Stats, refused: Counter[str]) -> Iterator[Sample]:
    """Yield the gauges and counters. `refused` has the number of refusals by `Reason.refusal`."""
    for name, kind, description, read in _VALUES:
        yield Sample(name, description, kind, (), read(stats))
    for result, checks in (("passed", stats.checks), ("failed", stats.checks_failed)):
        yield Sample(*_CHECKS, "counter", (("result", result),), checks)
    for (rows, width), runs in stats.prompt_runs.items():
        yield Sample(*_PROMPT_RUNS, "counter", (("rows", str(rows)), ("width", str(width))), runs)
    if stats.capture_refusal:
        yield Sample(*_NOT_CAPTURED, "gauge", (("reason", stats.capture_refusal[:_REASON_LENGTH]),), 1)
    for reason in REASONS.values():
        if reason.refusal:
            yield Sample(*_REFUSED, "counter", (("reason", reason.refusal),), refused[reason.refusal])


def histograms(stats: Stats) -> Iterator[Sample]:
    """Yield the lines of the histograms."""
    yield from _histogram(*_FIRST_TOKEN, stats.first_token)
    yield from _histogram(*_INTER_TOKEN, stats.inter_token)


def _histogram(name: str, description: str, histogram: Histogram) -> Iterator[Sample]:
    """Yield cumulative buckets, as Prometheus' histogram_quantile needs them."""
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        yield Sample(f"{name}_bucket", f"{description}: at most le", "counter", (("le", bound),), total)
    yield Sample(f"{name}_sum", f"{description}: their sum", "counter", (), histogram.sum)
    yield Sample(f"{name}_count", f"{description}: their number", "counter", (), total)


class MetricsPublisher:
    """Publishes `stats()` and `refused`, with the label model=`model`, in a thread.

    Counters increase by what is counted after the publisher was created. A label's value that is new later, such as
    a shape of prompts, gets its metric with its first publication. `family` is pb.MetricFamily, which exists only
    inside Triton.
    """

    def __init__(self, family: Any, model: str, stats: Callable[[], Stats], refused: Counter[str]) -> None:
        self._family = family
        self._model = model
        self._stats = stats
        self._refused = refused
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._published: dict[tuple[str, Labels], float] = {}
        for sample in (*counts(stats(), refused), *histograms(stats())):
            self._open(sample)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics")
        self._thread.start()

    def close(self) -> None:
        """Publish once more, and end the thread."""
        self._ends.set()
        self._thread.join()
        self._publish((*counts(self._stats(), self._refused), *histograms(self._stats())))

    def _run(self) -> None:
        rounds = itertools.count(1)
        while not self._ends.wait(SECONDS):
            self._publish(counts(self._stats(), self._refused))
            if next(rounds) % SLOW == 0:
                self._publish(histograms(self._stats()))

    def _publish(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            key = (sample.name, sample.labels)
            if key not in self._metrics:
                self._open(replace(sample, value=0))
            before, self._published[key] = self._published[key], sample.value
            if sample.value == before:  # a change costs a call into the server's process
                continue
            if sample.kind == "gauge":
                self._metrics[key].set(sample.value)
            else:
                self._metrics[key].increment(sample.value - before)

    def _open(self, sample: Sample) -> None:
        if sample.name not in self._families:
            kind = self._family.GAUGE if sample.kind == "gauge" else self._family.COUNTER
            self._families[sample.name] = self._family(name=sample.name, description=sample.description, kind=kind)
            _keep_for_ever(self._families[sample.name])
        metric = self._families[sample.name].Metric(labels={"model": self._model, **dict(sample.labels)})
        _keep_for_ever(metric)
        self._metrics[sample.name, sample.labels] = metric
        self._published[sample.name, sample.labels] = sample.value
        if sample.kind == "gauge":
            metric.set(sample.value)


def _keep_for_ever(found: Any) -> None:
    """Never free a metric or family, not even at the end of the process.

    Triton 2.51 shares a family among all engines, and deletes it when the first engine frees it. Updates by the others
    would then write into freed memory of the server.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
