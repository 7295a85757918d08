"""Ten minutes (or $HFX_SOAK_SECONDS) of mixed load: no process of the server grows, and every text is correct."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil
import pytest

from hfx.triton import EmbeddedServer
from hfx.triton.workspace import SHARED_MEMORY, region_prefix
from tests.rigs.checkpoints.reciting_generator import ENDLESS
from tests.rigs.clients.generation_requests import Answer, Ask, AskFailed
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS, RECITAL, STREAMS, WRITERS, all_free, in_process
from tests.triton.test_generation_equality import mixed_asks

pytestmark = pytest.mark.triton

SECONDS = float(os.environ.get("HFX_SOAK_SECONDS", "600"))
CALLERS = 12
SERVER = "tritonserver"
MEGABYTE = 2**20
# How much more there may be at the end than in the middle. Allocators breathe by some megabytes, and the pool of gRPC
# in tritonserver (of 300 threads) by the busiest moment so far; its memory grew by 0.1 to 0.4 KB a request.
# Connections come and go, but do not become more.
ALLOWED_SHARE = {(SERVER, "rss"): 0.12, (SERVER, "threads"): 0.03}
ALLOWED = {"rss": 4 * MEGABYTE, "fds": 2, "threads": 1, "shared memory": 2 * MEGABYTE, "regions": 0}

# One moment: (process, resource) -> how much; `shared memory` (bytes) and `regions` are those of all processes.
Usage = Mapping[tuple[str, str], int]


def usage(server: EmbeddedServer) -> Usage:
    """Return the present resource usage of each process of `server`."""
    names = {server.pid: SERVER} | {pids[-1]: instance for instance, pids in server.stubs().items()}
    used: dict[tuple[str, str], int] = {}
    for pid, name in names.items():
        process = psutil.Process(pid)
        used[name, "rss"] = process.memory_info().rss
        used[name, "fds"], used[name, "threads"] = process.num_fds(), process.num_threads()
    regions = [*SHARED_MEMORY.glob(region_prefix(server.log.parent) + "*")]
    used["all", "regions"] = len(regions)
    used["all", "shared memory"] = sum(region.stat().st_blocks * 512 for region in regions if region.exists())
    return used


def grown(usages: Sequence[Usage]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the usage that is larger in the last third of `usages` than in the second, by medians.

    The first third is the warm-up. A process that is not there all the time counts too, as it was restarted.
    """
    third = len(usages) // 3
    middle, end = medians(usages[third:-third]), medians(usages[-third:])
    assert third >= 3 and middle.keys() == end.keys(), "too few moments, or a process that came or went"
    allowed = {key: max(ALLOWED[key[1]], ALLOWED_SHARE.get(key, 0) * middle[key]) for key in middle}
    return {key: (middle[key], end[key]) for key in middle if end[key] - middle[key] > allowed[key]}


def medians(usages: Sequence[Usage]) -> dict[tuple[str, str], int]:
    keys = sorted({key for usage in usages for key in usage})
    return {key: int(statistics.median(usage.get(key, 0) for usage in usages)) for key in keys}


@contextmanager
def in_the_background(calls: list[Callable[[], None]]) -> Iterator[None]:
    """Repeat each of `calls` in a separate thread until the block ends, and raise what they raise."""
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


def checked(server: EmbeddedServer, pairs: list[tuple[str, Ask, Answer]]) -> Callable[[], None]:
    """Return a caller that compares each answer."""
    turns = itertools.cycle(pairs)

    def call() -> None:
        door, ask, expected = next(turns)
        assert DOORS[door](server, ask) == expected

    return call


def leaving(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """Return a caller that disconnects midway."""

    def call() -> None:
        with STREAMS[door](server, Ask(RECITAL, "a", ENDLESS)) as events:
            assert len(list(islice(events, 5))) == 5

    return call


def refused(server: EmbeddedServer, door: str) -> Callable[[], None]:
    """Return a caller whose requests are refused, or soon ended."""
    late = {**ENDLESS, "timeout_ms": 20}
    settings = itertools.cycle([{"num_beams": 0}, {"max_tokens": 9000}, {"long": "chunk"}, late])

    def call() -> None:
        with pytest.raises(AskFailed):
            DOORS[door](server, Ask(RECITAL, "a", next(settings)))
        time.sleep(0.05)

    return call


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_ten_minutes_of_mixed_load_grow_no_process_and_change_no_text(writers: Path) -> None:
    asks = mixed_asks()
    answers = in_process(writers, [ask for _, ask in asks])
    pairs = [(door, ask, answer) for (door, ask), answer in zip(asks, answers, strict=True)]
    with EmbeddedServer(writers) as server:
        calls = [checked(server, pairs[caller::CALLERS]) for caller in range(CALLERS)]
        calls += [leaving(server, door) for door in STREAMS]
        calls += [refused(server, door) for door in ("/generate", "/generate of the engine")]
        usages, end = [], time.monotonic() + SECONDS
        with in_the_background(calls):
            while time.monotonic() < end:
                usages.append(usage(server))
                time.sleep(max(0.5, SECONDS / 600))
        for name in (*WRITERS, RECITAL):
            wait_until(lambda name=name: all_free(server, name), f"the slots of {name} are free", 10)
        assert grown(usages) == {}
