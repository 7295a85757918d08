"""Counters of an engine: what metrics are made of."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# Upper bounds of the histograms, in seconds.
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Distribution:
    """How often a value was at most each of `bounds` and above the one before; the last count is of larger ones."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """A distribution that grows: one addition for each value, so that tokens may be counted."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> Distribution:
        """As it is now."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)


@dataclass(frozen=True)
class Stats:
    """An engine at one moment. Seconds and counts are totals since it was opened.

    `slots`, `slots_used`, `slots_free` are rows; `waiting` requests have none yet. `steps` are decode steps, one for
    each lane, and `step_seconds` their time with all that Python does; `prompt_runs` and `prompt_seconds` are those of
    prefills, chunks and encodes. `failed` holds the `deadlines` that passed. `refused` counts by the name of the error.
    `first_token` is the time from a request's submission to its first token (of beams: to their end), `inter_token`
    that from one step with a token of a request to its next.
    """

    slots: int
    slots_used: int
    slots_free: int
    waiting: int
    requests: int
    steps: int
    step_seconds: float
    prompt_runs: int
    prompt_seconds: float
    prompt_tokens: int
    tokens: int
    completed: int
    cancelled: int
    failed: int
    deadlines: int
    refused: Mapping[str, int]
    first_token: Distribution
    inter_token: Distribution


@dataclass
class Counters:
    """What is counted as it happens."""

    steps: int = 0
    step_seconds: float = 0.0
    prompt_runs: int = 0
    prompt_seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    deadlines: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))

    def snapshot(self, slots: int, slots_free: int, waiting: int, requests: int) -> Stats:
        """With what there is at the moment."""
        copies = {
            "refused": dict(self.refused),
            "first_token": self.first_token.snapshot(),
            "inter_token": self.inter_token.snapshot(),
        }
        return Stats(slots, slots - slots_free, slots_free, waiting, requests, **{**vars(self), **copies})
