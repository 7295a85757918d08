"""What generation is held to: the goals by work, and which way of hfx's and which peer's stand for a case.

A goal is hfx's faster way's (a runner, a form of its weights), as `hfx export` chooses it, against the fastest peer's.
Ratios are medians of the ratios within a round. Measures nothing; how goals are shown is generation_report.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.generation_figures import Result, Results
from bench.generation_peers import CTRANSLATE2, INTEL, ON, OURS, TORCH, is_ours
from bench.goals import Goal

ONNXRUNTIME, OPENVINO = ON["onnxruntime"], ON["openvino"]
Who = tuple[str, str]  # (way, precision)
CT2 = (CTRANSLATE2, "int8")


@dataclass(frozen=True)
class Wanted:
    """In the case that ends so, hfx is `least` times as fast as a peer.

    In that of `precisions` in which it is furthest ahead; peers are those whose names begin with `peer` (empty: any),
    in `against` or, where it is empty, the same precision.
    """

    case: str
    precisions: tuple[str, ...]
    least: float
    peer: str = ""
    against: str = ""


INT8, INT4 = ("int8",), ("int4",)
SPEED: dict[str, tuple[Wanted, ...]] = {
    "gpt2": (
        Wanted("B=1", INT4, 1.2),
        *(Wanted(f"B={rows}", each, 1.05) for rows in (8, 32, 128) for each in (INT8, INT4)),
        *(Wanted(f"B={rows}", INT8, least, CTRANSLATE2) for rows, least in ((1, 2.5), (8, 2.8), (32, 1.7), (128, 1.3))),
        Wanted("B=1", INT4, 5.0, CTRANSLATE2, "int8"),
    ),
    "t5": (
        Wanted("B=1", (*INT8, *INT4), 1.7, INTEL),
        Wanted("B=16", INT8, 1.15, INTEL),
        *(Wanted(f"B={rows}", INT8, least, CTRANSLATE2) for rows, least in ((1, 2.5), (16, 2.1))),
        Wanted("B=1", INT4, 4.0, CTRANSLATE2, "int8"),
    ),
    "bart": (
        *(Wanted(rows, INT8, 2.2, INTEL) for rows in ("B=1", "B=4")),
        *(Wanted(rows, INT8, 2.4, CTRANSLATE2) for rows in ("B=1", "B=4")),
        Wanted("B=1", INT8, 6.0, TORCH, "fp32"),
    ),
}
OVERHEAD = {"B=1": 0.15, "B=32": 0.6}
SHARE_OF_PEER_MEMORY, EXPORT_SECONDS, EXPORT_BYTES = 1.25, 60.0, 4e9
GOODPUT = {"arrivals": 1.2, "documents": 2.0}


@dataclass(frozen=True)
class Standing:
    """A case in a precision: hfx's fastest way, the fastest peer, and how many times as fast as it hfx is."""

    case: str
    ours: Who
    peer: Who
    ratio: float


def goals(results: Results) -> list[Goal]:
    """Those of the works that were run."""
    return [goal for name, result in results.items() if name in _GOALS for goal in _GOALS[name](name, result)]


def fastest_of_ours(result: Result, case: str, precision: str) -> Who | None:
    """hfx's way with the least milliseconds in `case`; None where none ran."""
    times = {
        who: median
        for who in result.ways("ms")
        if is_ours(who[0]) and who[1] == precision and (median := result.median((*who, case, "ms"))) is not None
    }
    return min(times, key=lambda who: times[who], default=None)


def standing(result: Result, case: str, precision: str, peer: str = "", against: str = "") -> Standing | None:
    """hfx in `precision` and the peer that is nearest to it, named and in a precision as Wanted says; None without."""
    ours = fastest_of_ours(result, case, precision)
    if ours is None:
        return None
    ratios = {
        who: ratio
        for who in result.ways("ms")
        if not is_ours(who[0])
        and who[0].startswith(peer)
        and who[1] == (against or precision)
        and (ratio := result.ratio((*who, case, "ms"), (*ours, case, "ms"))) is not None
    }
    nearest = min(ratios, key=lambda who: ratios[who], default=None)
    return None if nearest is None else Standing(case, ours, nearest, ratios[nearest])


def _speed_goals(name: str, result: Result) -> Iterator[Goal]:
    for wanted in SPEED[name]:
        for case in result.cases("ms"):
            if case.endswith(wanted.case):
                yield _speed_goal(f"{name} {case}", result, case, wanted)


def _speed_goal(title: str, result: Result, case: str, wanted: Wanted) -> Goal:
    found = [standing(result, case, each, wanted.peer, wanted.against) for each in wanted.precisions]
    best = max((each for each in found if each), key=lambda each: each.ratio, default=None)
    if best is None:
        words = f"{OURS} ({' or '.join(wanted.precisions)}) is x times as fast as {wanted.peer or 'the best peer'}"
        return Goal(f"{title}: {words}", None, wanted.least)
    ours, peer = (f"{way} ({precision})" for way, precision in (best.ours, best.peer))
    return Goal(f"{title}: {ours} is x times as fast as {peer}", best.ratio, wanted.least)


def _overhead_goals(name: str, result: Result) -> Iterator[Goal]:
    for way in result.ways("added"):
        for case in result.cases("added"):
            for suffix, most in OVERHEAD.items():
                if case.startswith("distilgpt2") and case.endswith(suffix):
                    words = f"{case}, {way[0]}: ms a step outside the runtime"
                    yield Goal(words, result.median((*way, case, "added")), most=most)


def _memory_goals(name: str, result: Result) -> Iterator[Goal]:
    for way in (way for way in result.ways("after") if is_ours(way[0])):
        for case in result.cases("after"):
            own, pool, peers = (
                result.median(key) for key in ((*way, case, "after"), (*way, case, "pool"), (*CT2, case, "after"))
            )
            share = own / (SHARE_OF_PEER_MEMORY * peers + pool) if own and pool and peers else None
            yield Goal(f"{case}, {way[0]}: memory, of 1.25 x CTranslate2's and the K/V pool", share, most=1.0)


def _arrivals_goals(name: str, result: Result) -> Iterator[Goal]:
    for model, facts in result.facts.items():
        ways = facts["ways"]
        ours, peer = (_most(ways, peer) for peer in (False, True))
        known = ours and peer and ways[peer]["goodput"] and not ways[peer]["at_least"]
        ratio = ways[ours]["goodput"] / ways[peer]["goodput"] if known else None
        words = f"{model}: goodput of {ours or OURS}, times that of {peer or 'the best peer'} at equal p99"
        yield Goal(words, ratio, least=GOODPUT[name])


def _most(ways: dict[str, dict[str, Any]], peer: bool) -> str | None:
    """The way with the greatest goodput, of the peers or of hfx's."""
    found = [title for title, way in ways.items() if way["peer"] == peer]
    return max(found, key=lambda title: ways[title]["goodput"], default=None)


def _export_goals(name: str, result: Result) -> Iterator[Goal]:
    took = result.facts.get("hfx", {}).get("took", {})
    yield Goal("hfx export of bart-large-cnn, gate included: seconds", took.get("seconds"), most=EXPORT_SECONDS)
    peak = took.get("peak_bytes")
    yield Goal("the same: GB at most", peak / 1e9 if peak else None, most=EXPORT_BYTES / 1e9)


_GOALS: dict[str, Callable[[str, Result], Iterator[Goal]]] = {
    **dict.fromkeys(SPEED, _speed_goals),
    **dict.fromkeys(GOODPUT, _arrivals_goals),
    "overhead": _overhead_goals,
    "memory": _memory_goals,
    "export": _export_goals,
}
