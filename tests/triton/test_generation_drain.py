"""A stop of a server with generators finishes running requests; idle streams don't delay it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.reciting_generator import ENDLESS, Recital
from tests.rigs.clients.generation_grpc import grpc_pieces
from tests.rigs.clients.generation_requests import Ask, AskFailed, Events
from tests.rigs.servers.generation_server import DOORS, RECITAL, SLOTS, STREAMS

pytestmark = pytest.mark.triton

DRAIN = 30
MODELS = (RECITAL, f"{RECITAL}_stream", "sentiment", "sentiment_tokenize", "sentiment_net", "sentiment_postprocess")
LENGTHY = {**ENDLESS, "max_tokens": 1500}  # some seconds


@pytest.fixture
def server(writers: Path, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of one generator and one encoder, which the test stops."""
    for model in MODELS:
        shutil.copytree(writers / model, tmp_path / "repository" / model)
    with EmbeddedServer(tmp_path / "repository", exit_timeout=DRAIN) as running:
        yield running


def used_stream(server: EmbeddedServer, model: str) -> triton.InferenceServerClient:
    """Return a client with an open stream on which a request has been answered."""
    client, answered = triton.InferenceServerClient(server.grpc_url), threading.Event()
    errors: list[Any] = []

    def arrive(result: Any, error: Any) -> None:
        errors.append(error)
        answered.set()

    client.start_stream(arrive)
    text = triton.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([["a"]], np.object_))
    client.async_stream_infer(model, [text])
    assert answered.wait(60) and errors == [None]
    return client


def test_a_stop_finishes_running_requests_and_ignores_idle_streams(server: EmbeddedServer) -> None:
    idle = [used_stream(server, model) for model in (f"{RECITAL}_stream", "sentiment")]

    def read(events: Events) -> str:
        with events as pieces:
            return "".join([begun.set() or piece["text_output"] for piece in pieces])

    begun, ended, whole = threading.Event(), [], DOORS["HTTP infer"](server, Ask(RECITAL, "a", LENGTHY)).text
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(read, events(server, Ask(RECITAL, "a", LENGTHY))) for events in STREAMS.values()]
        asked.append(pool.submit(lambda: DOORS["gRPC infer"](server, Ask(RECITAL, "a", LENGTHY)).text))
        for each in asked:
            each.add_done_callback(lambda _: ended.append(time.monotonic()))
        assert begun.wait(60)
        assert server.stop()
        assert [each.result() for each in asked] == [whole] * 3
    assert time.monotonic() - max(ended) < DRAIN / 2
    for client in idle:
        client.stop_stream(cancel_requests=True)
        client.close()


def test_a_stream_that_outlasts_the_drain_is_reported_as_lost(server: EmbeddedServer) -> None:
    server.exit_timeout = 1
    with ExitStack() as stack:
        streams = [stack.enter_context(grpc_pieces(server, Ask(RECITAL, "a", ENDLESS))) for _ in range(SLOTS[RECITAL])]
        for pieces in streams:  # a fast machine ends one of them within the grace of Triton
            next(pieces)
        assert not server.stop()


def test_a_stop_under_mixed_load_cuts_nothing_off(server: EmbeddedServer, recital: Recital) -> None:
    """Each answer is whole, or there is none: a request that comes too late is refused."""
    whole, stopping, answers = recital.text("a", 60), threading.Event(), threading.Semaphore(0)

    def ask(door: str) -> list[str]:
        texts = []
        while not stopping.is_set():
            try:
                texts.append(DOORS[door](server, Ask(RECITAL, "a", {"max_tokens": 60})).text)
            except (AskFailed, OSError):
                assert stopping.wait(10)
            answers.release()
        return texts

    with ThreadPoolExecutor(2 * len(DOORS)) as pool:
        asked = [pool.submit(ask, door) for door in [*DOORS] * 2]
        for _ in range(3 * len(asked)):
            assert answers.acquire(timeout=60)
        stopper = threading.Timer(0.2, stopping.set)
        stopper.start()
        assert server.stop()
        texts = [text for each in asked for text in each.result()]
    assert set(texts) == {whole}
