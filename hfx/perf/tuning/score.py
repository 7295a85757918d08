"""How good settings are: one figure for the search, the promise kept or not, and the Pareto front.

Owns these judgements over Runs. It must not know how runs are made or which settings there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfx.perf.results import Run

KEPT = 0.99  # the share of requests that must keep the SLO (without one: that must succeed)
LATE = 1e-4  # what a second of p99 costs where the rate is given: it decides among settings that hold it


@dataclass(frozen=True)
class Score:
    """`value`: higher is better; `kept`: enough requests kept the SLO; `run`: the load that it comes from."""

    value: float
    kept: bool
    run: Run

    @property
    def figure(self) -> float:
        """What two scores of the same load are divided by: their value, or how quick they were at a given rate."""
        return share(self.run) ** 2 / p99(self.run) if _is_given(self.run) else self.value


def score(runs: Sequence[Run]) -> Score:
    """The score of one trial: of the load that it holds best.

    Closed loops count successful requests (tokens, where they are written) a second; what does not keep the SLO counts
    the less, the more requests miss it. Of an open load the rate is given: the share that keeps it counts, and then
    the latency.
    """
    return max((_score(run) for run in runs), key=lambda each: (each.kept, each.value))


def share(run: Run) -> float:
    """The share of all requests that were answered as promised."""
    if run.goodput is not None:
        return run.goodput
    return run.requests.succeeded / run.requests.sent if run.requests.sent else 0.0


def rate(run: Run) -> float:
    """What a run gets done in a second: tokens where they are written, else requests."""
    return run.tokens_per_second or run.throughput


def p99(run: Run) -> float:
    """Milliseconds; without a single answer, infinitely many."""
    return run.latency.p99 if run.latency else float("inf")


def front(runs: Sequence[Run]) -> list[Run]:
    """The Pareto front over rate and p99, fastest answers first: no other run is better in one and as good in both."""
    usable = [run for run in runs if run.latency and share(run) >= KEPT]
    best: list[Run] = []
    for run in sorted(usable, key=lambda run: (p99(run), -rate(run))):
        if not best or rate(run) > rate(best[-1]):
            best.append(run)
    return best


def _score(run: Run) -> Score:
    found = share(run)
    kept = found >= KEPT
    if _is_given(run):
        return Score(round(min(found, KEPT), 2) - LATE * min(p99(run), 6e4) / 1e3, kept, run)
    return Score(rate(run) if kept else rate(run) * found**2, kept, run)


def _is_given(run: Run) -> bool:
    """Whether the load says how much is done in a second."""
    return run.load.kind == "open"
