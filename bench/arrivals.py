"""Ragged requests that arrive one by one: the load, its clock, and the rate that keeps within a latency."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FIRST_ID, LAST_ID = 100, 30_000  # below every vocabulary that is measured, and above the special ones


@dataclass(frozen=True)
class Arrival:
    """One request: seconds from the start, token ids, and how many new ones are wanted."""

    at: float
    ids: tuple[int, ...]
    new: int


@dataclass(frozen=True)
class Load:
    """`count` greedy requests by a Poisson process of `rate` a second (infinite: all at once), the same at every rate.

    Lengths are log-uniform, from 8 tokens on. `slots` are the rows of a continuous batch, `batch` those of a static
    one, in which prompts are at most `unlike` times as long as another.
    """

    rate: float
    count: int
    longest_prompt: int = 512
    longest_answer: int = 256
    slots: int = 32
    batch: int = 8
    unlike: float = 1.5

    def arrivals(self) -> list[Arrival]:
        """The requests in order of their time."""
        chance, at, found = random.Random(0), 0.0, []
        for _ in range(self.count):
            at += chance.expovariate(1.0) / self.rate
            ids = tuple(chance.randint(FIRST_ID, LAST_ID) for _ in range(_length(chance, self.longest_prompt)))
            found.append(Arrival(at, ids, _length(chance, self.longest_answer)))
        return found


def _length(chance: random.Random, longest: int) -> int:
    return round(math.exp(chance.uniform(math.log(8), math.log(longest))))


class Line:
    """The requests of a load inside the process that serves them. The clock runs from its creation."""

    def __init__(self, load: Load) -> None:
        self.requests = load.arrivals()
        self.ends = [0.0] * len(self.requests)
        self._load, self._taken, self._begin = load, 0, time.perf_counter()

    @property
    def waits(self) -> bool:
        """Whether requests are still to come."""
        return self._taken < len(self.requests)

    def take(self) -> list[int]:
        """The numbers of those that have come since the last call."""
        now, first = time.perf_counter() - self._begin, self._taken
        while self.waits and self.requests[self._taken].at <= now:
            self._taken += 1
        return list(range(first, self._taken))

    def sleep(self) -> None:
        """Until the next request comes."""
        if self.waits:
            time.sleep(max(0.0, self.requests[self._taken].at - (time.perf_counter() - self._begin)))

    def end(self, number: int, written: int) -> None:
        """A request has its last token. Raises ValueError for another number of tokens than it wants."""
        if written != self.requests[number].new:
            raise ValueError(f"request {number} has {written} tokens instead of {self.requests[number].new}")
        self.ends[number] = time.perf_counter() - self._begin

    def batches(self) -> Iterator[list[int]]:
        """Static batches: the oldest that waits, and those whose prompts are about as long, as soon as one is over."""
        waiting: list[int] = []
        while waiting or self.waits:
            if not waiting:
                self.sleep()
            waiting += self.take()
            lengths = {number: len(self.requests[number].ids) for number in waiting}
            chosen = alike(lengths, self._load.unlike)[: self._load.batch]
            waiting = [number for number in waiting if number not in chosen]
            yield chosen


def alike(lengths: dict[int, int], unlike: float) -> list[int]:
    """Of requests (number -> length of the prompt) the first, and those at most `unlike` times as long or short."""
    first = next(iter(lengths.values()), 0)
    return [number for number, length in lengths.items() if max(length, first) <= unlike * min(length, first)]


@dataclass(frozen=True)
class Point:
    """A load that is over: its rate (requests a second), latencies from arrival to last token, and what was reached."""

    rate: float
    latencies: tuple[float, ...]
    requests_per_second: float
    tokens_per_second: float

    @property
    def p50(self) -> float:
        """Median latency in seconds."""
        return statistics.median(self.latencies)

    @property
    def p99(self) -> float:
        """The latency that 99 % keep within; of less than 100 requests the longest."""
        return sorted(self.latencies)[math.ceil(0.99 * len(self.latencies)) - 1]


def point(load: Load, ends: Sequence[float]) -> Point:
    """From the second at which each request of `load` ended."""
    arrivals = load.arrivals()
    latencies = tuple(end - each.at for end, each in zip(ends, arrivals, strict=True))
    return Point(load.rate, latencies, len(ends) / max(ends), sum(each.new for each in arrivals) / max(ends))


def goodput(points: Sequence[Point], bound: float) -> float:
    """The greatest rate with a p99 of at most `bound`, 0 without one; between two points p99 is a straight line.

    `points` are in order of their rates.
    """
    best = 0.0
    for low, high in zip((None, *points[:-1]), points, strict=True):
        if high.p99 <= bound:
            best = high.rate
        elif low is not None and low.p99 <= bound:
            return low.rate + (bound - low.p99) / (high.p99 - low.p99) * (high.rate - low.rate)
    return best
