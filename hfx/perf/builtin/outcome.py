"""What the generator tells while it runs, and when it is done: figures only, whatever was sent and however."""

from __future__ import annotations

from dataclasses import dataclass

from hfx.perf.builtin.driver import Phase
from hfx.perf.results.schema import ClientSide, Distribution, Requests, Tokens

__all__ = ["Generated", "Phase", "Progress"]


@dataclass(frozen=True)
class Progress:
    """A load under way. The counts are those of the phase; figures are of the last second, times in milliseconds.

    `draining`: nothing more is sent, and answers that are due are waited for.
    """

    phase: Phase
    elapsed: float
    sent: int
    succeeded: int
    failed: int
    in_flight: int
    throughput: float
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Generated:
    """A load that is over: what counted of it, as in hfx.perf.results.Run.

    `seconds` are from the first moment that a request was due to the last answer. `throughput` counts what succeeded
    while the load was on: of callers, over the time from each one's first request to its last answer; of arrivals at
    times of their own, between the first answer and the last; all at once, over `seconds`. `requests.errors` has no
    timeouts. `stable` is None where it was not asked for.
    """

    began: str
    seconds: float
    requests: Requests
    throughput: float
    latency: Distribution | None
    ttft: Distribution | None = None
    tpot: Distribution | None = None
    gaps: Distribution | None = None
    tokens: Tokens | None = None
    tokens_per_second: float | None = None
    goodput: float | None = None
    client: ClientSide | None = None
    interrupted: bool = False
    stable: bool | None = None
    notes: tuple[str, ...] = ()
