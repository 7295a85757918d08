"""Answers that the front samples, and its counts while the comparing process is slow, ends or writes no JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import pytest

from hfx.front.shadow import WAITING, SampledAnswer, Shadow
from hfx.front.upstream import COPIED_BYTES

COUNTS = {"same": 1, "tie": 0, "differs": 2, "drift": 0.5}
VERDICT = json.dumps({"model": "m", **COUNTS, "agreement": 0.9, "drift_limit": 0.1, "skipped": ""})
# Reads bodies of two bytes each; it ends at "no", and writes no JSON for "odd.".
ONCE = f"""
import sys
while line := sys.stdin.buffer.readline():
    bodies = sys.stdin.buffer.read(4)
    if bodies.startswith(b"no"):
        sys.exit(3)
    print({VERDICT!r} if bodies != b"odd." else "no JSON", flush=True)
"""
SLOW = "import time; time.sleep(600)"


def pair(request: bytes = b"ok", answer: bytes = b"ok") -> SampledAnswer:
    return SampledAnswer(b"/v2/models/m/infer", request, {}, answer, {})


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_verdicts_are_counted_and_a_process_that_ends_is_started_again() -> None:
    async def run() -> None:
        shadow = Shadow(1.0, command(ONCE), pause=0.01)
        shadow.add(pair())
        shadow.add(pair(b"no"))
        shadow.add(pair(b"od", b"d."))
        shadow.add(pair())
        await until(lambda: shadow.answers["m", "same"] == 2)
        assert (shadow.answers["m", "differs"], shadow.answers["m", "tie"]) == (4, 0)
        assert shadow.drift["m",] == 1.0
        assert shadow.limits == {("m", "agreement"): 0.9, ("m", "drift"): 0.1}
        assert shadow.skipped == {"failed": 2}

    asyncio.run(run())


def test_pairs_are_skipped_while_the_comparing_process_is_slow() -> None:
    async def run() -> None:
        shadow = Shadow(1.0, command(SLOW))
        for _ in range(2 * WAITING):
            shadow.add(pair())
        shadow.add(pair(bytes(COPIED_BYTES + 1)))
        assert shadow.skipped == {"busy": WAITING, "large": 1}
        await until(lambda: shadow._waiting.qsize() < WAITING)  # the process has started

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "drawn"),
    [
        (b"/v2/models/m/infer", True),
        (b"/v2/models/m_stream/generate_stream", True),
        (b"/v2/models/m/versions/1/infer", False),
        (b"/v2/models/m", False),
        (b"/v2/health/ready", False),
        (b"/v2/models/../infer", False),
    ],
)
def test_only_answers_of_models_are_sampled(path: bytes, drawn: bool) -> None:
    assert Shadow(1.0, ()).draws(path) is drawn
    assert Shadow(0.0, ()).draws(path) is False


def test_the_configured_share_of_answers_is_sampled() -> None:
    shadow = Shadow(0.1, ())
    assert 800 < sum(shadow.draws(b"/v2/models/m/infer") for _ in range(10_000)) < 1200
