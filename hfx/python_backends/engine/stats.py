"""Counters of an engine: what metrics are made of."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# Upper bounds of the histograms, in seconds.
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)


class Histogram:
    """How often a value was at most each of `bounds` and above the one before; the last count is of larger ones."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`: one addition, so that tokens may be counted."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class Stats:
    """An engine's counters. Seconds and counts are totals since it was opened.

    `steps` are decode steps, one for each partition, and `step_seconds` their time with all that Python does.
    `prompt_tokens` were run, `cached_tokens` of prompts came from the prefix cache instead. Of `draft_tokens`, which
    were guessed and run, `accepted_tokens` were what their sequences chose. `failed` holds the `deadlines` that passed.
    `first_token` is the time from a request's submission to its first token (of beams: to their end), `inter_token`
    that from one step with a token of a request to its next. The last fields are those of a snapshot: `slots`,
    `slots_used`, `slots_free` are rows; `waiting` requests have none yet.
    """

    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    deadlines: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))
    slots: int = 0
    slots_used: int = 0
    slots_free: int = 0
    waiting: int = 0
    requests: int = 0
