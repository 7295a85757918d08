"""A document of 15 MB from one caller on a real server: latency of other requests, deadline, and memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.clients.generation_grpc import grpc_infer, grpc_pieces
from tests.rigs.clients.generation_requests import Ask, AskFailed
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import all_free, in_process, metrics

pytestmark = pytest.mark.triton

MODEL = "summaries"
MEGABYTE = 2**20
HUGE = 15 * MEGABYTE
GREEDY = {"num_beams": 1, "max_tokens": 30}
CHUNKS = {**GREEDY, "long": "chunk"}


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [example.prompt for example in zoo.heldout("summaries", 200)]


@pytest.fixture(scope="module")
def huge(prompts: list[str]) -> str:
    text = " ".join(prompts)
    return (text * (HUGE // len(text) + 1))[:HUGE]


@pytest.fixture(autouse=True)
def ends(writing_server: EmbeddedServer) -> Iterator[None]:
    """Check after each test that no work is left."""
    yield
    wait_until(lambda: all_free(writing_server, MODEL), "the slots are free", 20)


@contextmanager
def beside(server: EmbeddedServer, text: str) -> Iterator[Callable[[], bool]]:
    """Read a document during the block; yield a function that tells whether it is still being read."""
    over, begun = threading.Event(), threading.Event()
    leaves = threading.Event()

    def read() -> None:
        with grpc_pieces(server, Ask(MODEL, text, CHUNKS)) as pieces:
            for _ in pieces:
                begun.set()
                if leaves.is_set():
                    return
        over.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(begun.is_set, "the document has begun", 60)
        yield lambda: not over.is_set()
    finally:
        leaves.set()
        reader.join()


def test_other_requests_are_answered_beside_a_huge_document(
    huge: str, prompts: list[str], writing_server: EmbeddedServer, writers: Path
) -> None:
    other = " ".join(prompts[:30])
    asks = [Ask(MODEL, other, CHUNKS), *(Ask(MODEL, prompt, GREEDY) for prompt in prompts[:8])]
    expected = in_process(writers, asks)
    with beside(writing_server, huge) as goes_on:
        read = metrics(writing_server, MODEL)["hfx_prompt_tokens_total"]
        assert [grpc_infer(writing_server, ask) for ask in asks] == expected
        own = sum(answer.input_tokens for answer in expected)
        wait_until(
            lambda: metrics(writing_server, MODEL)["hfx_prompt_tokens_total"] > read + 2 * own, "it goes on too", 20
        )
        assert goes_on()


@pytest.mark.full
def test_small_requests_keep_their_latency_beside_a_huge_document(
    huge: str, prompts: list[str], writing_server: EmbeddedServer
) -> None:
    """Measured: 1.5 to 2 times the latency alone; 20 times without a batch and rows of their own."""
    ask = Ask(MODEL, prompts[0][:120], {"num_beams": 1, "max_tokens": 16, "min_tokens": 16})

    def seconds() -> float:
        begin = time.perf_counter()
        grpc_infer(writing_server, ask)
        return time.perf_counter() - begin

    def median() -> float:
        with ThreadPoolExecutor(4) as callers:
            return statistics.median(callers.map(lambda _: seconds(), range(400)))

    median()
    alone = median()
    with beside(writing_server, huge) as goes_on:
        assert median() < 8 * alone
        assert goes_on()


@pytest.mark.parametrize("text", ["sentences", full("\n"), full("a. "), "x"])
def test_a_huge_document_ends_at_its_deadline(text: str, huge: str, writing_server: EmbeddedServer) -> None:
    text = huge if text == "sentences" else text * (HUGE // len(text))
    stub = psutil.Process(writing_server.stubs()[f"{MODEL}_stream_0_0"][-1])
    before = stub.memory_info().rss
    with pytest.raises(AskFailed, match=r"\[hfx:DEADLINE_EXCEEDED\]"):
        grpc_infer(writing_server, Ask(MODEL, text, {**CHUNKS, "timeout_ms": 1000}))
    wait_until(lambda: all_free(writing_server, MODEL), "the slots are free", 20)
    spent = sum(stub.cpu_times()[:2])
    time.sleep(1)
    assert sum(stub.cpu_times()[:2]) - spent < 0.5, "its division goes on"
    assert stub.memory_info().rss - before < 12 * HUGE
