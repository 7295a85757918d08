"""When requests are sent, by callers that wait for their answers or at times of their own, and how long it goes on."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.perf.results import Load

Arrivals = Literal["constant", "poisson", "burst", "trace"]
MOST_CALLERS = 100_000
LONGEST_UNTIL_STABLE = 60.0  # seconds, where nothing else is said


@dataclass(frozen=True)
class Closed:
    """So many callers, each of which sends its next request when the last one is answered."""

    callers: int

    def __post_init__(self) -> None:
        if not 1 <= self.callers <= MOST_CALLERS:
            raise UsageError(f"A load of {self.callers} callers can't be.", f"Give 1 to {MOST_CALLERS}.")

    def load(self, data: str, limit: str, case: str = "") -> Load:
        """This plan in a result file."""
        from hfx.perf.results import Load  # tools that only carry out a plan need no schema

        return Load("closed", concurrency=self.callers, data=data, limit=limit, case=case)


@dataclass(frozen=True)
class Open:
    """Requests that come whether others are answered or not.

    `rate` a second, evenly (constant) or at random (poisson: exponential gaps drawn from `seed`); all at once (burst
    without a rate) or `burst` at a time, so often that the rate comes out; or at the seconds of `trace`, which rise.
    """

    rate: float | None = None
    arrivals: Arrivals = "constant"
    trace: tuple[float, ...] = ()
    seed: int = 0
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"A rate of {self.rate:g} requests a second can't be.", "Give a positive number.")
        if self.arrivals == "trace":
            if self.rate is not None:
                raise UsageError("A trace has its own times.", "Leave the rate out.")
            if not self.trace or any(later < earlier for earlier, later in itertools.pairwise(self.trace)):
                raise UsageError("The times of a trace must rise, and there must be one.", "Sort them.")
        elif self.rate is None and (self.arrivals != "burst" or self.burst is not None):
            raise UsageError(f"{self.arrivals.title()} arrivals need a rate.", "Give --rate, in requests a second.")
        if self.burst is not None and (self.arrivals != "burst" or self.burst < 1):
            raise UsageError(f"Bursts of {self.burst} requests can't be.", "Give burst:N with N from 1 up.")

    @property
    def at_once(self) -> bool:
        """Whether all requests are due in the same moment."""
        return self.arrivals == "burst" and self.rate is None

    def load(self, data: str, limit: str, case: str = "") -> Load:
        """This plan in a result file."""
        from hfx.perf.results import Load

        words = f"burst of {self.burst}" if self.burst else "all at once" if self.at_once else self.arrivals
        return Load("open", rate=self.mean_rate, arrivals=words, data=data, limit=limit, case=case)

    @property
    def mean_rate(self) -> float | None:
        """Requests a second; of a trace its mean, None for all at once."""
        if self.arrivals != "trace":
            return self.rate
        seconds = self.trace[-1] - self.trace[0]
        return (len(self.trace) - 1) / seconds if seconds > 0 else None

    def times(self, count: int | None = None) -> Iterator[float]:
        """When each of `count` requests is due, in seconds from the start; None: to the end of a trace, or for ever."""
        return itertools.islice(self._all(), count)

    def _all(self) -> Iterator[float]:
        if self.arrivals == "trace":
            return iter(self.trace)
        if self.rate is None:
            return itertools.repeat(0.0)
        if self.arrivals == "poisson":
            return _poisson(self.rate, random.Random(self.seed))
        together, rate = self.burst or 1, self.rate
        return (number // together * together / rate for number in itertools.count())


Plan = Closed | Open


@dataclass(frozen=True)
class Limits:
    """`requests` or `seconds` that count, whichever comes first, after a warm-up of requests or seconds that do not.

    With `stable`, the load goes on until throughput and median latency of three windows in a row lie within so many
    per cent, and these windows count; a window has at least `window` seconds. A request may take `timeout` seconds.
    """

    requests: int | None = None
    seconds: float | None = None
    warmup_requests: int = 0
    warmup_seconds: float = 0.0
    stable: float | None = None
    window: float = 2.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"With {self.requests} requests nothing is measured.", "Give at least 1.")
        for name in ("seconds", "stable", "window", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"The limit {name} is {value!r}.", "Give a positive number.")
        if self.warmup_requests < 0 or not 0 <= self.warmup_seconds < math.inf:
            raise UsageError("A warm-up can't be shorter than none.", "Give a number of requests, or seconds.")

    @property
    def warms_up(self) -> bool:
        """Whether requests are sent before those that count."""
        return bool(self.warmup_requests or self.warmup_seconds)

    @property
    def most_seconds(self) -> float | None:
        """How long requests that count are sent at most."""
        unbounded = self.stable is not None and self.seconds is None and self.requests is None
        return LONGEST_UNTIL_STABLE if unbounded else self.seconds

    @property
    def words(self) -> str:
        """In a result file."""
        parts = [f"{self.requests} request{'' if self.requests == 1 else 's'}"] if self.requests else []
        parts += [f"{self.most_seconds:g} s"] if self.most_seconds else []
        most = " or ".join(parts)
        if self.stable is None:
            return most
        return f"until stable within {self.stable:g} %" + (f", {most} at most" if most else "")


def _poisson(rate: float, chance: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        yield at
        at += chance.expovariate(rate)
