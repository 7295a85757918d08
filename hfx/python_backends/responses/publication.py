"""Figures on Triton's /metrics, brought up to date a few times a second by a thread of its own.

Owns the metrics that Triton holds; each change of one costs a call into the server's process, so only what has changed
is told.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import triton_python_backend_utils as pb

from .figures import Figure, Labels

SECONDS = 0.2
SLOW = 5  # the many lines of histograms are published each so many rounds

Read = Callable[[], Iterable[Figure]]


class Publication:
    """Publishes what `read` gives, and now and then what `read_slow` does, with the label model=`model`.

    Counters begin where they stand now.
    """

    def __init__(self, model: str, read: Read, read_slow: Read) -> None:
        self._model = model
        self._read = read
        self._read_slow = read_slow
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._told: dict[tuple[str, Labels], float] = {}
        for figure in (*read(), *read_slow()):
            self._open(figure)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics")
        self._thread.start()

    def close(self) -> None:
        """Publish a last time, and take the metrics back: Triton's process must still be there to hear of it."""
        self._ends.set()
        self._thread.join()
        self._publish(self._read())
        self._publish(self._read_slow())
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        rounds = itertools.count(1)
        while not self._ends.wait(SECONDS):
            self._publish(self._read())
            if next(rounds) % SLOW == 0:
                self._publish(self._read_slow())

    def _publish(self, figures: Iterable[Figure]) -> None:
        for figure in figures:
            key = (figure.name, figure.labels)
            told, self._told[key] = self._told[key], figure.value
            if figure.value == told:
                continue
            if figure.kind == "gauge":
                self._metrics[key].set(figure.value)
            else:
                self._metrics[key].increment(figure.value - told)

    def _open(self, figure: Figure) -> None:
        family = self._families.get(figure.name)
        if family is None:
            kind = pb.MetricFamily.GAUGE if figure.kind == "gauge" else pb.MetricFamily.COUNTER
            family = pb.MetricFamily(name=figure.name, description=figure.description, kind=kind)
            self._families[figure.name] = family
        metric = family.Metric(labels={"model": self._model, **dict(figure.labels)})
        self._metrics[figure.name, figure.labels] = metric
        self._told[figure.name, figure.labels] = figure.value
        if figure.kind == "gauge":
            metric.set(figure.value)
