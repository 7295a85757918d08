"""A plan and its requests as a library without a server takes them, and what came of them as figures.

Owns what of a request a peer can do: a text, and exactly so many greedy tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bench.errors import PeerFailed
from bench.peers.loads import TextLoad, Times
from hfx import names
from hfx.perf.load import Closed, Limits, Plan, RequestSet
from hfx.perf.loadgen.log import RequestLog

KNOWN = (names.TEXT_INPUT, names.MAX_TOKENS, names.MIN_TOKENS)
# Settings of a request that change nothing of a greedy answer with exactly so many tokens.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    names.NUM_BEAMS: (1,),
    names.BEAM_WIDTH: (1,),
    names.DO_SAMPLE: (False,),
    names.NO_REPEAT_NGRAM_SIZE: (0,),
}


def asked(asks: RequestSet, labels: bool = False) -> tuple[tuple[str, int], ...]:
    """Text and new tokens of each request (0 where LABELS are asked for). Raises PeerFailed for what no peer does."""
    return tuple(_asked(ask.inputs, labels) for ask in asks.items)


def text_load(plan: Plan, asks: RequestSet, limits: Limits) -> TextLoad:
    """PLAN for a process without a server. Raises PeerFailed for a load without an end."""
    texts, seconds = asked(asks), limits.most_seconds
    if limits.warmup_seconds or limits.stable is not None:
        raise PeerFailed("a library's warm-up is a number of requests, and it has no windows")
    if limits.requests is None and seconds is None:
        raise PeerFailed("the load has no end")
    if isinstance(plan, Closed):
        at: tuple[float, ...] = (0.0,) * plan.callers
        return TextLoad(texts, at, True, limits.requests, seconds, limits.warmup_requests)
    at = tuple(plan.times(limits.requests, seconds))
    return TextLoad(texts, at, warm=limits.warmup_requests)


def log_of(times: Sequence[Times], began: str) -> RequestLog:
    """The log of a load that is over; all of its requests were answered."""
    log = RequestLog(stream=True, counts=True, began=began)
    for number, each in enumerate(times):
        ttft = each.first - each.due
        tpot = (each.end - each.first) / (each.written - 1) if each.written > 1 else math.nan
        log.rows.extend((
            number, each.caller, each.due, each.due, each.end, 0, ttft, tpot, each.read, each.written, 0, 0,
        ))  # fmt: skip
    return log


def now() -> str:
    """The time of day, as results have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _asked(inputs: Mapping[str, tuple[Any, ...]], labels: bool) -> tuple[str, int]:
    if unknown := [name for name, values in inputs.items() if name not in KNOWN and values != NEUTRAL.get(name)]:
        raise PeerFailed(f"peers answer no requests with {unknown[0]}={inputs[unknown[0]][0]}")
    if names.TEXT_INPUT not in inputs:
        raise PeerFailed(f"peers answer requests with a {names.TEXT_INPUT} alone")
    text, new = str(inputs[names.TEXT_INPUT][0]), inputs.get(names.MAX_TOKENS, (0,))[0]
    if labels:
        return text, 0
    if not new or inputs.get(names.MIN_TOKENS, (new,))[0] != new:
        raise PeerFailed(
            f"a peer writes exactly so many tokens: requests need {names.MAX_TOKENS}, and {names.MIN_TOKENS} the same"
        )
    return text, int(new)
