"""What is measured of a served generator, work by work: which loads, which ways, in which order.

In every round each way has its turn with the same load, and rounds begin with another way each. Ways that gave other
counts of tokens than the engine in process are noted and have no figures. The tables are serve_report.py's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench import serve_mlserver, serve_model
from bench.errors import CaseFailed, OpenFailed
from bench.generation_figures import Result
from bench.generation_works import say
from bench.serve_answers import Measured, mean, quantile
from bench.serve_cases import (
    SEED_BURST,
    SEED_RATE,
    SEED_SECONDS,
    Closed,
    Load,
    Open,
    alike,
    at_once,
    mixed,
    seed_load,
)  # fmt: skip
from bench.serve_cost import Cost
from bench.serve_doors import DOORS
from bench.serve_inside import PIECES, WHOLE
from bench.serve_mlserver import MLSERVER
from bench.serve_ways import INSIDE, Ways, alone, opened
from hfx.errors import FetchFailed

PRECISION, PEER_PRECISION = "int8", "bf16"
WARM_PEER = 8
FIRST_TOKENS, FIRST_REQUESTS = 16, 10
COUNTED = (1, 2, FIRST_REQUESTS)
RATE_CASE, BURST_CASE = "at a rate", "at once"
MS = 1e3


@dataclass(frozen=True)
class Settings:
    """How much is measured. `requests` by callers; `patience`: no further round begins after so many seconds."""

    tiny: bool = False
    rounds: int | None = None
    requests: tuple[tuple[int, int], ...] = ((1, 12), (8, 48), (32, 128), (128, 320))
    seed_seconds: float = SEED_SECONDS
    burst: int = SEED_BURST
    patience: float = 240.0
    peers: bool = True

    def turns(self, usual: int) -> int:
        """Rounds of a work that usually has so many."""
        return self.rounds or usual


QUICK = Settings(
    tiny=True, rounds=1, requests=((1, 4), (8, 24)), seed_seconds=0.5, burst=32, patience=20.0, peers=False
)


def throughput(settings: Settings) -> Result:
    """Callers who wait: tokens a second, times to the first token and pauses, in process and through each door."""
    result, ways = Result(), (WHOLE, PIECES, *DOORS)
    with opened(serve_model.repository(settings.tiny)) as doors:
        _warm(doors, ways, settings)
        for turn in rounds(settings, "load", 3):
            for callers, count in settings.requests:
                load, written = Closed(mixed(count), callers), None
                for way in _rotated(ways, turn):
                    written = _measure(doors, way, str(callers), load, turn, result, written)
    return result


def seed(settings: Settings) -> Result:
    """The seed load: requests at a fixed rate, and many in the same moment; MLServer in the first round only."""
    result, ways = Result(facts={"offered": SEED_RATE}), (PIECES, *DOORS)
    loads: dict[str, Open] = {
        RATE_CASE: seed_load(SEED_RATE, settings.seed_seconds), BURST_CASE: at_once(alike(settings.burst)),
    }  # fmt: skip
    with opened(serve_model.repository(settings.tiny)) as doors:
        _warm(doors, ways, settings)
        for turn in rounds(settings, "seed", 2):
            for case, load in loads.items():
                written = None
                for way in _rotated(ways, turn):
                    written = _measure(doors, way, case, load, turn, result, written)
            if settings.peers and turn == 0:
                _measure_peer(loads, settings, result)
    return result


def _measure_peer(loads: Mapping[str, Open], settings: Settings, result: Result) -> None:
    say(f"opening {MLSERVER}")
    try:
        with serve_mlserver.opened(settings.tiny) as peer:
            peer.answer((MLSERVER, at_once(alike(WARM_PEER))))
            for case, load in loads.items():
                found = peer.answer((MLSERVER, load))
                _keep(result, (MLSERVER, PEER_PRECISION, case), 0, _figures(found))
                if found.errors:
                    result.notes[f"{MLSERVER}, {case}"] = f"{len(found.errors)} errors: {found.errors[0]}"
    except (CaseFailed, OpenFailed, FetchFailed) as reason:
        result.notes[MLSERVER] = f"not run: {reason}"


def first(settings: Settings) -> Result:
    """Milliseconds of the first requests after a start, one after the other; every way starts anew in every round."""
    result, folder = Result(), serve_model.repository(settings.tiny)
    load = Closed(alike(FIRST_REQUESTS, FIRST_TOKENS), 1)
    for turn in rounds(settings, "first", 2):
        for way in _rotated((PIECES, *DOORS), turn):
            try:
                found = alone(way, load, folder)
            except (CaseFailed, OpenFailed) as reason:
                result.notes[way] = f"not run: {reason}"
                continue
            for number in COUNTED:
                result.add((way, PRECISION, f"request {number}", "ms"), turn, MS * found.latencies[number - 1])
    return result


WORKS: dict[str, Callable[[Settings], Result]] = {"load": throughput, "seed": seed, "first": first}


def rounds(settings: Settings, title: str, usual: int) -> Iterator[int]:
    """The numbers of the rounds, told to whoever waits; fewer where they take too long."""
    begin = time.perf_counter()
    for turn in range(settings.turns(usual)):
        if turn and time.perf_counter() - begin > settings.patience:
            return
        say(f"{title}: round {turn + 1} of {settings.turns(usual)}")
        yield turn


def _warm(doors: Ways, ways: Sequence[str], settings: Settings) -> None:
    """Every way has met as many callers as there will be, and memory has grown."""
    most = max(callers for callers, _ in settings.requests)
    for way in ways:
        say(f"warming {way}")
        try:
            doors.measured(way, Closed(mixed(most), most))
        except (CaseFailed, OpenFailed) as reason:  # its turns will say so too
            say(f"{way}: {reason}")


def _rotated(ways: Sequence[str], turn: int) -> tuple[str, ...]:
    """The reference stays first, the others begin with another one each round."""
    reference, others = ways[0], ways[1:]
    at = turn % len(others)
    return (reference, *others[at:], *others[:at])


def _measure(
    doors: Ways, way: str, case: str, load: Load, turn: int, result: Result, reference: Measured | None
) -> Measured | None:
    """A turn of `way`, kept as figures if its counts are those of `reference`; gives the reference of the next."""
    title = f"{way}, {case}"
    if title in result.notes:
        return reference
    try:
        found, used = doors.measured(way, load)
        if reference is not None and found.written != reference.written:
            raise CaseFailed(
                f"wrote {sum(found.written)} tokens where {sum(reference.written)} were written in process"
            )
    except (CaseFailed, OpenFailed) as reason:
        result.notes[title] = f"not run: {reason}"
        return reference
    _keep(result, (way, PRECISION, case), turn, {**_figures(found), **_costs(found, used, way)})
    alike_texts = sum(a == b for a, b in zip(found.texts, (reference or found).texts, strict=True))
    result.add((way, PRECISION, case, "texts as in process"), turn, alike_texts / len(found.texts))
    return reference or found


def _keep(result: Result, key: tuple[str, str, str], turn: int, figures: Mapping[str, float]) -> None:
    for figure, value in figures.items():
        if not math.isnan(value):  # a text that comes whole has no pauses
            result.add((*key, figure), turn, value)


def _figures(found: Measured) -> dict[str, float]:
    first = found.first if found.pauses else ()  # of a text that comes whole, it is the end
    return {
        "tokens/s": found.tokens_per_second,
        "tokens": sum(found.written),
        "prompt tokens": found.read / len(found.written),
        "tokens a message": sum(found.written) / found.messages,
        "requests": len(found.latencies),
        "seconds": found.seconds,
        "requests/s": found.rate,
        "held requests/s": found.held,  # means nothing of a burst, whose answers come together
        "mean ms": MS * mean(found.latencies),
        "p50 ms": MS * quantile(found.latencies, 0.5),
        "p99 ms": MS * quantile(found.latencies, 0.99),
        "first p50 ms": MS * quantile(first, 0.5),
        "first p99 ms": MS * quantile(first, 0.99),
        "pause p50 ms": MS * quantile(found.pauses, 0.5),
        "pause p99 ms": MS * quantile(found.pauses, 0.99),
    }


def _costs(found: Measured, used: Cost, way: str) -> dict[str, float]:
    """Microseconds of a processor for each token, by process; in process there is but one."""
    inside = way in INSIDE
    seconds = {
        "client us": 0.0 if inside else found.processor,
        "server us": 0.0 if inside else used.server,
        "relay us": 0.0 if inside else used.relay,
        "engine us": found.processor if inside else used.engine,
    }
    each = {name: 1e6 * value / sum(found.written) for name, value in seconds.items()}
    return {**each, "all us": sum(each.values())}
