"""Requests that arrive one by one: what a load took, and how much of it keeps within a latency.

Owns goodput: the greatest rate at which 99 % of the requests are done within a bound, from arrival to last token. The
ways that serve stand in their own files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from bench.generation_cases import Load
from bench.peers.resident import Resident

# The rates that are tried: this share of what a burst gave, then more or less by these.
USUAL_SHARE, STEPS = 0.7, (0.3, 0.15, 0.075)
FEWEST_REQUESTS = 8


@dataclass(frozen=True)
class Served:
    """A load that is over: seconds from arrival to last token of each request, and new tokens a second in all."""

    latencies: tuple[float, ...]
    requests_per_second: float
    tokens_per_second: float

    @classmethod
    def of(cls, load: Load, ends: Sequence[float]) -> Self:
        """From the time at which each request ended, in seconds from the start and in order of arrival."""
        arrivals, last = load.arrivals(), max(ends)
        latencies = tuple(end - arrival.at for end, arrival in zip(ends, arrivals, strict=True))
        return cls(latencies, len(arrivals) / last, sum(each.new for each in arrivals) / last)

    @property
    def p50(self) -> float:
        """Median latency in seconds."""
        return statistics.median(self.latencies)

    @property
    def p99(self) -> float:
        """The latency that 99 % of the requests keep within, in seconds; of less than 100 requests the longest."""
        return sorted(self.latencies)[math.ceil(0.99 * len(self.latencies)) - 1]


@dataclass(frozen=True)
class Point:
    """A rate that was tried, in requests a second, and what came of it."""

    rate: float
    served: Served


def burst(way: Resident, load: Load) -> Served:
    """All requests at once: what the way can do at most."""
    found = way.answer(replace(load, rate=math.inf))
    assert isinstance(found, Served)
    return found


def at_rate(way: Resident, load: Load, rate: float, seconds: float) -> Point:
    """Arrivals of about `seconds` at `rate` requests a second."""
    found = way.answer(replace(load, rate=rate, count=max(FEWEST_REQUESTS, round(rate * seconds))))
    assert isinstance(found, Served)
    return Point(rate, found)


@dataclass
class Search:
    """For the rate of `way` whose p99 is a bound, by halving, from the usual share of `capacity` (requests a second).

    The loads are `load`, for about `seconds` each.
    """

    way: Resident
    load: Load
    capacity: float
    seconds: float
    points: list[Point] = field(default_factory=list)
    _share: float = USUAL_SHARE

    def next(self, bound: float = math.inf) -> Point:
        """Try a rate: the usual one, then one that is nearer to what keeps within `bound`."""
        if self.points:
            step = STEPS[len(self.points) - 1]
            self._share += step if self.points[-1].served.p99 <= bound else -step
        self.points.append(at_rate(self.way, self.load, self._share * self.capacity, self.seconds))
        return self.points[-1]

    def goodput(self, bound: float) -> float:
        """What the points that were tried say of it."""
        return goodput(sorted(self.points, key=lambda point: point.rate), bound)

    def is_open(self, bound: float) -> bool:
        """Whether no rate that was tried is too high: there is more goodput than found."""
        return max(self.points, key=lambda point: point.rate).served.p99 <= bound


def goodput(points: Sequence[Point], bound: float) -> float:
    """The greatest rate whose p99 is at most `bound`; 0 where none keeps it.

    `points` are in order of their rates; between two, p99 is a straight line.
    """
    best = 0.0
    for low, high in zip((None, *points[:-1]), points, strict=True):
        if high.served.p99 <= bound:
            best = high.rate
        elif low is not None and low.served.p99 <= bound:
            share = (bound - low.served.p99) / (high.served.p99 - low.served.p99)
            return low.rate + share * (high.rate - low.rate)
    return best
