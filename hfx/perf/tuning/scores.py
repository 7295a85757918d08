"""The scores by which trials are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.compare.cost import GOOD_SHARE
from hfx.perf.results import Run

PUBLISHED = "published"  # the label of the published settings
LATE = 1e-4  # score lost per second of p99 under an open load; it decides among settings that all meet the SLO


@dataclass(frozen=True)
class Score:
    """The score of a trial. A higher `value` is better. `run` is the run under the best load.

    `is_good` says whether enough requests met the SLO.
    """

    value: float
    is_good: bool
    run: Run

    @property
    def figure(self) -> float:
        """The figure for the ratio of two scores under one load: `value`, or good_share**2 / p99 for an open load."""
        return self.run.good_share**2 / p99(self.run) if self.run.load.kind == "open" else self.value


def score(runs: Sequence[Run]) -> Score:
    """Return the score of one trial, which is the best score of its runs. Each run has a different load.

    A closed loop scores its tokens (or else its requests) a second; if it misses the SLO, that is multiplied by the
    squared share of requests that meet it. The rate of an open load is fixed, so it scores the share of requests that
    meet the SLO, and then the latency.
    """
    return max((_score(run) for run in runs), key=lambda each: (each.is_good, each.value))


def rate(run: Run) -> float:
    """Return the tokens a second of a generator's run, else the requests a second."""
    return run.tokens_per_second or run.throughput


def p99(run: Run) -> float:
    """Return the p99 latency in ms; infinite if nothing was answered."""
    return run.latency.p99 if run.latency else float("inf")


def _score(run: Run) -> Score:
    good = run.good_share
    if run.load.kind == "open":
        return Score(round(min(good, GOOD_SHARE), 2) - LATE * min(p99(run), 6e4) / 1e3, good >= GOOD_SHARE, run)
    return Score(rate(run) if good >= GOOD_SHARE else rate(run) * good**2, good >= GOOD_SHARE, run)
