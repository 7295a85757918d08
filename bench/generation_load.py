"""The work "arrivals": ragged requests by a Poisson process, hfx beside static batches and OpenVINO's continuous ones.

Every way is first given a burst, then rates around what it can do. Owns sizes and bounds; how a load is served and what
goodput is, is arrivals.py's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench.arrivals import USUAL_SHARE, Point, Served, at_rate, burst, goodput, sweep
from bench.generation_cases import Load, open_model
from bench.generation_figures import Result
from bench.generation_peers import CT2, GENAI8, OURS8, Way
from bench.generation_works import Settings, opened, say
from hfx.errors import CaseFailed, OpenFailed
from hfx.perf.peers.resident import Resident

WARM_REQUESTS = 4


@dataclass(frozen=True)
class Traffic:
    """A model under load: `count` requests in a burst, `seconds` of arrivals at a rate, greedy answers.

    `static` are (rows at most, times that one prompt may be as long as another) of batches.
    """

    model: str
    count: int
    seconds: float
    slots: int
    static: tuple[tuple[int, float], ...]
    continuous: tuple[Way, ...]


TRAFFIC = (
    # CTranslate2 feeds a decoder what exceeds the shortest prompt of a batch token by token; an encoder only pads.
    # These were the best of batches of 1 to 32 and ratios of 1.1 to any.
    Traffic("distilgpt2", 64, 1.0, 32, ((8, 1.5), (32, 3.0)), (OURS8, GENAI8)),
    # A request is 13 times the work: fewer of them.
    Traffic("bart-large-cnn", 16, 1.5, 16, ((8, math.inf), (16, math.inf)), (OURS8,)),
)


def arrivals(settings: Settings) -> Result:
    """Facts by model: the bound on p99, and of each way its burst, the rates that were tried, and its goodput.

    The bound is what CTranslate2 needs at 70 % of what it can do, with the static batches that do most: p99 is equal.
    """
    result = Result()
    for traffic in TRAFFIC:
        model = open_model(traffic.model, settings.tiny)
        with opened(model, (*traffic.continuous, CT2), result) as residents:
            tests = {way: _Test(way, resident, traffic, settings, result) for way, resident in residents.items()}
            found = {batch: tests[CT2].at_usual(batch, unlike) for batch, unlike in traffic.static if CT2 in tests}
            outcomes = {f"{CT2.name}, static batches of {batch} at most": each for batch, each in found.items() if each}
            best = max(outcomes.values(), key=lambda outcome: outcome.burst.requests_per_second, default=None)
            bound = best.points[0].served.p99 if best else math.inf
            for way in traffic.continuous:
                swept = tests[way].swept(bound) if way in tests else None
                outcomes.update({way.name: swept} if swept else {})
        ways = {name: _figures(outcome, bound) for name, outcome in outcomes.items()}
        result.facts[model.name] = {"bound": bound, "ways": ways}
    return result


@dataclass(frozen=True)
class _Outcome:
    burst: Served
    points: list[Point]


@dataclass(frozen=True)
class _Test:
    """A way under the loads of `traffic`. Where it fails, `result` has a note and there is no outcome."""

    way: Way
    resident: Resident
    traffic: Traffic
    settings: Settings
    result: Result

    def at_usual(self, batch: int, unlike: float) -> _Outcome | None:
        """A burst, and one rate below what it gave, in static batches."""

        def points(load: Load, capacity: float) -> list[Point]:
            return [at_rate(self.resident, load, USUAL_SHARE * capacity, self._seconds)]

        return self._outcome(dataclasses.replace(self._load(), batch=batch, unlike=unlike), points)

    def swept(self, bound: float) -> _Outcome | None:
        """A burst, and rates around the one that keeps p99 within `bound`."""

        def points(load: Load, capacity: float) -> list[Point]:
            return sweep(self.resident, load, capacity, self._seconds, bound)

        return self._outcome(self._load(), points)

    @property
    def _seconds(self) -> float:
        return self.traffic.seconds * self.settings.load_seconds

    def _outcome(self, load: Load, points: Callable[[Load, float], list[Point]]) -> _Outcome | None:
        say(f"load on {self.way.name}, {self.traffic.model}")
        try:
            burst(self.resident, dataclasses.replace(load, count=WARM_REQUESTS))
            most = burst(self.resident, load)
            return _Outcome(most, points(load, most.requests_per_second))
        except (CaseFailed, OpenFailed) as reason:
            self.result.notes[f"{self.way.name}, {self.traffic.model}"] = f"not run: {reason}"
            return None

    def _load(self) -> Load:
        load = Load(math.inf, self.traffic.count, slots=self.traffic.slots)
        if self.settings.tiny:
            return dataclasses.replace(load, count=16, longest_prompt=64, longest_answer=32)
        return load


def _figures(outcome: _Outcome, bound: float) -> dict[str, Any]:
    points = [{"rate": point.rate, **_numbers(point.served)} for point in outcome.points]
    return {
        "burst": _numbers(outcome.burst),
        "points": points,
        "goodput": goodput(outcome.points, bound),
        "at_least": len(points) > 1 and outcome.points[-1].served.p99 <= bound,  # no rate that was tried is too high
    }


def _numbers(served: Served) -> dict[str, float]:
    kept = {name: value for name, value in asdict(served).items() if name != "latencies"}
    return {**kept, "p50": served.p50, "p99": served.p99, "requests": len(served.latencies)}
