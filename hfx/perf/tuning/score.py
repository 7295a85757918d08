"""How good settings are: one figure for the search, and whether the SLO is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.compare.cost import KEPT
from hfx.perf.results import Run

LATE = 1e-4  # what a second of p99 costs where the rate is given: it decides among settings that hold it


@dataclass(frozen=True)
class Score:
    """`value`: higher is better; `kept`: enough requests kept the SLO; `run`: the load that it comes from."""

    value: float
    kept: bool
    run: Run

    @property
    def figure(self) -> float:
        """What two scores of the same load are divided by: their value, or their speed at a given rate."""
        return self.run.kept**2 / p99(self.run) if self.run.load.kind == "open" else self.value


def score(runs: Sequence[Run]) -> Score:
    """The score of one trial: of the load that it holds best.

    Closed loops count successful requests (tokens, where they are written) a second; a load that misses the SLO counts
    the less, the more requests miss it. Of an open load the rate is given: the share that keeps the SLO counts, then
    the latency.
    """
    return max((_score(run) for run in runs), key=lambda each: (each.kept, each.value))


def rate(run: Run) -> float:
    """What a run gets done in a second: tokens where they are written, else requests."""
    return run.tokens_per_second or run.throughput


def p99(run: Run) -> float:
    """Milliseconds; infinite without a single answer."""
    return run.latency.p99 if run.latency else float("inf")


def _score(run: Run) -> Score:
    good = run.kept
    if run.load.kind == "open":
        return Score(round(min(good, KEPT), 2) - LATE * min(p99(run), 6e4) / 1e3, good >= KEPT, run)
    return Score(rate(run) if good >= KEPT else rate(run) * good**2, good >= KEPT, run)
