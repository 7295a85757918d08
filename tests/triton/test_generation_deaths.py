"""Kills of the engine's, the relay's or the server's process, or SIGTERM, while requests run.

No call may hang, and none may get part of a text as a whole one. Other tests cover how `hfx serve` detects deaths.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

import pytest

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import ENDLESS, Recital
from tests.rigs.clients.generation_http import post
from tests.rigs.clients.generation_requests import Answer, Ask, AskFailed
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import DOORS, RECITAL, SLOTS, metrics

pytestmark = pytest.mark.triton

MIXED = ("sse", "grpc stream", "gRPC infer", "HTTP infer")
CALLERS = 16
IN_FLIGHT = 64
LONG = 4000  # tokens
HANGS = 20.0  # seconds; a caller that still waits then would wait for ever

Outcome = Answer | Exception
Calls = list[Future[Outcome]]


@pytest.fixture
def server(writers: Path) -> Iterator[EmbeddedServer]:
    """A separate server for each test, as the test destroys it."""
    with EmbeddedServer(writers, models=[RECITAL], exit_timeout=30) as running:
        yield running


def outcome(server: EmbeddedServer, door: str, ask: Ask) -> Outcome:
    try:
        return DOORS[door](server, ask)
    except Exception as error:  # AskFailed, or the libraries' errors for broken connections
        return error


def begun(server: EmbeddedServer, pool: ThreadPoolExecutor, doors: tuple[str, ...]) -> Calls:
    """Start CALLERS calls for long texts, and return them once the engine has all requests."""
    ask = Ask(RECITAL, "a", ENDLESS)
    calls = [pool.submit(outcome, server, doors[number % len(doors)], ask) for number in range(CALLERS)]
    wait_until(lambda: under_way(server) == CALLERS, "the engine has all requests")
    return calls


def under_way(server: EmbeddedServer) -> float:
    found = metrics(server, RECITAL)
    return found.get("hfx_slots_used", 0.0) + found.get("hfx_queue_length", 0.0)


def completed(server: EmbeddedServer) -> float:
    return metrics(server, RECITAL).get("hfx_requests_completed_total", 0.0)


def all_failed(calls: Calls) -> None:
    done, waiting = wait_for(calls, timeout=HANGS)
    assert not waiting, f"{len(waiting)} callers hang"
    assert [call.result() for call in done if isinstance(call.result(), Answer)] == []


def answers_again(server: EmbeddedServer, recital: Recital) -> None:
    for door in DOORS:
        assert DOORS[door](server, Ask(RECITAL, "a", {"max_tokens": 30})).text == recital.text("a", 30)


@pytest.mark.parametrize("killed", [f"{RECITAL}_stream", full(RECITAL)])
def test_calls_of_a_killed_engine_or_relay_fail_once_the_server_restarts(
    killed: str, server: EmbeddedServer, recital: Recital
) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        calls = begun(server, pool, MIXED)
        (pids,) = [pids for instance, pids in server.stubs().items() if instance.startswith(f"{killed}_0")]
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda: bool(server.fault()), "the server knows that its stub died")
        server.restart()
        all_failed(calls)
    answers_again(server, recital)


def test_sigterm_loses_no_accepted_request(server: EmbeddedServer, recital: Recital) -> None:
    """Of 64 requests through all interfaces at most 4 run at a time; each gets its whole and correct text."""
    doors, running = list(DOORS), SLOTS[RECITAL]
    # Those that run first take about as long as it takes the others to come.
    lengths = [LONG if number < running else 250 + number for number in range(IN_FLIGHT)]
    asks = [Ask(RECITAL, "a" * (1 + number % 7), {"max_tokens": length}) for number, length in enumerate(lengths)]
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        calls = [pool.submit(outcome, server, doors[i % len(doors)], ask) for i, ask in enumerate(asks[:running])]
        wait_until(lambda: under_way(server) == running, "the engine has taken the long requests")
        calls += [pool.submit(outcome, server, doors[i % len(doors)], ask) for i, ask in enumerate(asks[running:])]
        wait_until(lambda: under_way(server) + completed(server) == IN_FLIGHT, "the engine has taken all requests")
        assert under_way(server), "nothing is under way when the server is told to end"
        os.kill(server.pid, signal.SIGTERM)
        found = [call.result(timeout=60) for call in calls]
    wrong = [(doors[i % len(doors)], one) for i, one in enumerate(found) if not isinstance(one, Answer)]
    assert not wrong, f"{len(wrong)} of {IN_FLIGHT} requests were lost: {wrong[:8]}"
    expected = [recital.text(str(ask.text), ask.settings["max_tokens"]) for ask in asks]
    assert [one.text for one in found if isinstance(one, Answer)] == expected


def test_calls_after_sigterm_and_unfinished_calls_fail_without_hanging(writers: Path) -> None:
    with EmbeddedServer(writers, models=[RECITAL], exit_timeout=2) as server, ThreadPoolExecutor(2 * CALLERS) as pool:
        calls = begun(server, pool, tuple(DOORS))
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(0.3)
        calls += [pool.submit(outcome, server, door, Ask(RECITAL, "a", {"max_tokens": 5})) for door in DOORS]
        server.stop()
        all_failed(calls)


@pytest.mark.parametrize("requests", [500, full(3000)])
def test_a_storm_of_refused_requests_ends_neither_relay_nor_server(
    requests: int, writing_server: EmbeddedServer, recital: Recital
) -> None:
    ended = threading.Event()

    def refused(_: int) -> None:
        if ended.is_set():
            return
        try:
            post(writing_server, f"{RECITAL}/generate", b'{"text_input": "a", "num_beams": 0}', timeout=8)
        except AskFailed as refusal:
            if "num_beams" in refusal.message:
                return
        except OSError:
            pass
        ended.set()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(refused, range(requests)))
    assert not ended.is_set() and not writing_server.fault()
    answers_again(writing_server, recital)
