"""The works "arrivals": ragged requests by a Poisson process, hfx on both runtimes beside the peers that take them.

Every way has a burst, then rates around what it can do, in turn with the others; all are held to one bound. Owns sizes
and bounds; how a load is served stands with each way, what goodput is in arrivals.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.arrivals import STEPS, Search, Served, burst
from bench.generation_cases import Load, open_model
from bench.generation_figures import Result
from bench.generation_peers import CT2, GENAI8, ORT8, OV8, Way, is_ours
from bench.generation_works import FAILURES, Settings, opened, say
from bench.peers.resident import Resident

WARM_REQUESTS = 4


@dataclass(frozen=True)
class Traffic:
    """A model under load: `count` requests in a burst, `seconds` of arrivals at a rate, greedy answers.

    The `peer` takes requests as they come too, or, where there are `rows`, in static batches of at most so many: each
    is tried, and the best of them is what counts.
    """

    model: str
    count: int
    seconds: float
    slots: int
    ours: tuple[Way, ...]
    peer: Way
    rows: tuple[int, ...] = ()


# A document is 13 times the work of a prompt: fewer of them.
PROMPTS = Traffic("distilgpt2", 64, 1.0, 64, (OV8, ORT8), GENAI8)
DOCUMENTS = Traffic("bart-large-cnn", 16, 1.5, 16, (OV8, ORT8), CT2, (8, 16))


@dataclass(frozen=True)
class Contender:
    """A way that was under load: what a burst gave, and the search for its rate. `peer`: it is none of hfx's."""

    title: str
    most: Served
    search: Search
    peer: bool
    static: bool


def arrivals(settings: Settings) -> Result:
    """GPT-2 beside OpenVINO's continuous batching."""
    return _work(PROMPTS, settings)


def documents(settings: Settings) -> Result:
    """BART beside CTranslate2's static batches: no peer has continuous ones for an encoder-decoder."""
    return _work(DOCUMENTS, settings)


def reference(contenders: Sequence[Contender]) -> Contender | None:
    """The peer that does most in a burst; of hfx's ways, where there is no peer."""
    return max(contenders, key=lambda each: (each.peer, each.most.requests_per_second), default=None)


def _work(traffic: Traffic, settings: Settings) -> Result:
    """Facts: the bound on p99 and whose it is, and of each way its burst, the rates that were tried, and its goodput.

    The bound is what the reference needs at 70 % of what it can do.
    """
    result, found = Result(), list[Contender]()
    model = open_model(traffic.model, settings.tiny)
    with opened(model, settings.chosen((*traffic.ours, traffic.peer)), result) as residents:
        for way, resident in residents.items():
            for title, load in _loads(way, traffic, settings):
                found += _contender(way, title, resident, load, traffic.seconds * settings.load_seconds, result)
        best = reference(found)
        bound = best.search.points[0].served.p99 if best else math.inf
        for _ in STEPS:
            for each in [each for each in found if not each.static]:  # whose usual rate is its goodput
                say(f"load on {each.title}, {model.name}")
                try:
                    each.search.next(bound)
                except FAILURES as reason:
                    result.notes[each.title] = f"stopped: {reason}"
    ways = {each.title: _figures(each, bound) for each in found}
    result.facts[model.name] = {"bound": bound, "reference": best.title if best else "", "ways": ways}
    return result


def _loads(way: Way, traffic: Traffic, settings: Settings) -> list[tuple[str, Load]]:
    """What a way is given, and what it is called then."""
    load = Load(math.inf, traffic.count, slots=traffic.slots)
    if settings.tiny:
        load = dataclasses.replace(load, count=16, longest_prompt=64, longest_answer=32)
    if way is not traffic.peer or not traffic.rows:
        return [(way.name, load)]
    return [
        (f"{way.name}, static batches of {rows} at most", dataclasses.replace(load, batch=rows, unlike=math.inf))
        for rows in traffic.rows  # an encoder pads, whatever the lengths
    ]


def _contender(way: Way, title: str, resident: Resident, load: Load, seconds: float, result: Result) -> list[Contender]:
    """A burst, and the usual rate; nothing, and a note, where it fails."""
    say(f"load on {title}")
    try:
        burst(resident, dataclasses.replace(load, count=WARM_REQUESTS))
        most = burst(resident, load)
        search = Search(resident, load, most.requests_per_second, seconds)
        search.next()
    except FAILURES as reason:
        result.notes[title] = f"not run: {reason}"
        return []
    return [Contender(title, most, search, not is_ours(way.name), title != way.name)]


def _figures(contender: Contender, bound: float) -> dict[str, Any]:
    search = contender.search
    points = sorted(search.points, key=lambda point: point.rate)
    return {
        "peer": contender.peer,
        "burst": _numbers(contender.most),
        "points": [{"rate": point.rate, **_numbers(point.served)} for point in points],
        "goodput": search.goodput(bound),
        "at_least": not contender.static and search.is_open(bound),
    }


def _numbers(served: Served) -> dict[str, float]:
    kept = {name: value for name, value in asdict(served).items() if name != "latencies"}
    return {**kept, "p50": served.p50, "p99": served.p99, "requests": len(served.latencies)}
