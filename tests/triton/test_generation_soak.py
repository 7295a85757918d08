"""Ten minutes of mixed callers (or $HFX_SOAK_SECONDS): no process of the server grows, and every text stays right."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.triton.generation_asks import Answer, Ask, AskFailed
from tests.triton.generation_rig import DOORS, RECITAL, STREAMS, WRITERS, all_free, in_process, wait_until
from tests.triton.reciting import ENDLESS
from tests.triton.test_generation_equality import mixed_asks
from tests.triton.usage import ALLOWED, Usage, grown, usage

pytestmark = pytest.mark.triton

SECONDS = float(os.environ.get("HFX_SOAK_SECONDS", "600"))
CALLERS = 12


@contextmanager
def in_the_background(calls: list[Callable[[], None]]) -> Iterator[None]:
    """Each of `calls` again and again, in a thread of its own, until the block ends; what one raises is raised."""
    over = threading.Event()

    def repeat(call: Callable[[], None]) -> None:
        while not over.is_set():
            call()

    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(repeat, call) for call in calls]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


def faithful(server: EmbeddedServer, pairs: list[tuple[str, Ask, Answer]]) -> Callable[[], None]:
    """A caller who checks each answer."""
    turns = itertools.cycle(pairs)

    def call() -> None:
        door, ask, wanted = next(turns)
        assert DOORS[door](server, ask) == wanted

    return call


def leaving(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """A caller who leaves midway."""

    def call() -> None:
        with STREAMS[door](server, Ask(RECITAL, "a", ENDLESS)) as events:
            assert len(list(islice(events, 5))) == 5

    return call


def refused(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """A caller of whom nothing can be accepted, or not for long."""
    late = {**ENDLESS, "timeout_ms": 20}
    settings = itertools.cycle([{"num_beams": 0}, {"max_tokens": 9000}, {"long": "chunk"}, late])

    def call() -> None:
        with pytest.raises(AskFailed):
            DOORS[door](server, Ask(RECITAL, "a", next(settings)))
        time.sleep(0.05)

    return call


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_grows_and_no_text_changes(writers: Path) -> None:
    asks = mixed_asks()
    answers = in_process(writers, [ask for _, ask in asks])
    checked = [(door, ask, answers[number]) for number, (door, ask) in enumerate(asks)]
    with EmbeddedServer(writers) as server:
        calls = [faithful(server, checked[caller::CALLERS]) for caller in range(CALLERS)]
        calls += [leaving(server, door) for door in STREAMS]
        calls += [refused(server, door) for door in ("/generate", "/generate of the engine")]
        with in_the_background(calls):
            usages, end = [], time.monotonic() + SECONDS
            while time.monotonic() < end:
                usages.append(usage(server))
                time.sleep(max(0.5, SECONDS / 600))
        for name in (*WRITERS, RECITAL):
            wait_until(lambda name=name: all_free(server, name), f"the slots of {name} are free", 10)
        report(usages)
        assert grown(usages) == {}


def report(usages: list[Usage]) -> None:
    for key in sorted(usages[-1]):
        figures = [moment.get(key, 0) for moment in usages]
        print(key, [figures[len(figures) * tenth // 10] for tenth in range(10)], figures[-1])


@pytest.mark.parametrize("resource", ALLOWED)
def test_what_grows_is_named_and_nothing_else(resource: str) -> None:
    step = ALLOWED[resource] + 1
    amounts = [{each: 100 + (at * step if each == resource else at % 2) for each in ALLOWED} for at in range(12)]
    usages = [{("x", each): amount for each, amount in moment.items()} for moment in amounts]
    assert grown(usages).keys() == {("x", resource)}
