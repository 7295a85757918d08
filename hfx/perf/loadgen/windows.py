"""Windows of a load, one after the other, until throughput and latency hardly change any more.

The criterion is perf_analyzer's: three windows in a row within so many per cent. Knows no clock of its own.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

NEEDED = 3
FEWEST_ANSWERS = 10  # of a window: fewer would be luck


@dataclass(frozen=True)
class Window:
    """A part of a load: from when, successful requests a second, median seconds of them."""

    begin: float
    throughput: float
    latency: float


class Windows:
    """Windows of at least `seconds` and as many answers as there are callers; `stable` once the last ones agree."""

    def __init__(self, seconds: float, callers: int, per_cent: float) -> None:
        self._seconds = seconds
        self._fewest = max(FEWEST_ANSWERS, callers)
        self._factor = 1 + per_cent / 100
        self._done: list[Window] = []
        self._begin = 0.0
        self._latencies: list[float] = []

    @property
    def stable(self) -> bool:
        """Whether the last windows agree."""
        last = self._done[-NEEDED:]
        if len(last) < NEEDED:
            return False
        rates, times = [window.throughput for window in last], [window.latency for window in last]
        return max(rates) <= self._factor * min(rates) and max(times) <= self._factor * min(times)

    @property
    def begin(self) -> float:
        """When the first of the last windows began."""
        return self._done[-NEEDED:][0].begin

    def start(self, now: float) -> None:
        """The first window begins."""
        self._begin = now

    def add(self, latency: float) -> None:
        """A request succeeded."""
        self._latencies.append(latency)

    def tick(self, now: float) -> None:
        """End the window where it is long enough."""
        seconds, count = now - self._begin, len(self._latencies)
        if seconds < self._seconds or count < self._fewest:
            return
        self._done.append(Window(self._begin, count / seconds, statistics.median(self._latencies)))
        self._begin, self._latencies = now, []
