"""An engine's metrics on Triton's /metrics, published a few times a second by a thread of its own."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import triton_python_backend_utils as pb

from ..engine.stats import Stats
from .metrics import Labels, Sample, counts, histograms

SECONDS = 0.2
SLOW = 5  # the many lines of histograms are published each so many rounds


class MetricsPublisher:
    """Publishes `stats()` and `refused`, with the label model=`model`. Counters begin where they stand now."""

    def __init__(self, model: str, stats: Callable[[], Stats], refused: Counter[str]) -> None:
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
        """Publish a last time, and take the metrics back: Triton's process must still be there to hear of it."""
        self._ends.set()
        self._thread.join()
        self._publish((*counts(self._stats(), self._refused), *histograms(self._stats())))
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        rounds = itertools.count(1)
        while not self._ends.wait(SECONDS):
            self._publish(counts(self._stats(), self._refused))
            if next(rounds) % SLOW == 0:
                self._publish(histograms(self._stats()))

    def _publish(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            key = (sample.name, sample.labels)
            before, self._published[key] = self._published[key], sample.value
            if sample.value == before:  # each change costs a call into the server's process
                continue
            if sample.kind == "gauge":
                self._metrics[key].set(sample.value)
            else:
                self._metrics[key].increment(sample.value - before)

    def _open(self, sample: Sample) -> None:
        if sample.name not in self._families:
            kind = pb.MetricFamily.GAUGE if sample.kind == "gauge" else pb.MetricFamily.COUNTER
            self._families[sample.name] = pb.MetricFamily(name=sample.name, description=sample.description, kind=kind)
        metric = self._families[sample.name].Metric(labels={"model": self._model, **dict(sample.labels)})
        self._metrics[sample.name, sample.labels] = metric
        self._published[sample.name, sample.labels] = sample.value
        if sample.kind == "gauge":
            metric.set(sample.value)
