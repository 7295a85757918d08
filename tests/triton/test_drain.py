"""The stop of `hfx serve`: accepted requests are answered, new ones refused, and a second signal ends it at once."""

from __future__ import annotations

import http.client
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.triton import EmbeddedServer
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, infer, left_behind, running_in, serving
from tests.rigs.servers.toy_models import write_ticks, write_toy

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]
BROKEN = (ConnectionError, http.client.HTTPException)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_ticks(write_toy(tmp_path / "repository"))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def ask(threads: ThreadPoolExecutor, served: ServeProcess, texts: list[str]) -> list[Future[str]]:
    """Send requests to `toy`, and return once the server has accepted them."""
    asked = [threads.submit(infer, served.http_url, "toy", text) for text in texts]
    time.sleep(0.5)
    return asked


def test_a_stop_answers_running_and_queued_requests_and_refuses_new_ones(
    repository: Path, threads: ThreadPoolExecutor
) -> None:
    with serving(repository) as served, grpc.InferenceServerClient(served.ready["grpc_url"]) as idle:
        group = served.server
        idle.start_stream(lambda result, error: None)  # without requests it delays nothing
        asked = ask(threads, served, [f"sleep 0.{index}" for index in range(6, 10)])
        served.running.terminate()
        assert "up to 30 s" in served.wait_for_words("Stopping")
        with pytest.raises((OSError, AssertionError)):
            infer(served.http_url, "toy", "x")
        assert not all(future.done() for future in asked)
        assert [future.result() for future in asked] == ["9 characters"] * 4
        assert served.end() == 0, served.words
        assert "no accepted request was lost" in served.words
    assert running_in(group) == []
    assert left_behind() == []


def test_a_stop_finishes_streams_and_ignores_idle_http_connections(repository: Path) -> None:
    text = grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([["20"]], np.object_))
    pieces: list[object] = []
    with (
        serving(repository) as served,
        grpc.InferenceServerClient(served.ready["grpc_url"]) as client,
    ):
        kept = http.client.HTTPConnection(served.http_url.removeprefix("http://"))
        kept.request("GET", "/v2/health/ready")
        assert kept.getresponse().read() == b""
        client.start_stream(lambda result, error: pieces.append(result))
        client.async_stream_infer("ticks", [text])
        ticking = urllib.request.Request(f"{served.http_url}/v2/models/ticks/generate_stream", b'{"text_input": "10"}')
        with urllib.request.urlopen(ticking, timeout=60) as stream:
            served.running.terminate()
            assert sum(line.startswith(b"data: ") for line in stream) == 10
            client.stop_stream()  # once it is finished
        assert served.end() == 0, served.words
        kept.close()
        assert len([piece for piece in pieces if piece]) == 20
        assert "no accepted request was lost" in served.words


def test_a_request_longer_than_the_drain_is_lost_and_reported(repository: Path, threads: ThreadPoolExecutor) -> None:
    with serving(repository, "--drain", "1") as served:
        [slow] = ask(threads, served, ["sleep 60"])
        served.running.terminate()
        assert served.end() == 5
        assert "--drain" in served.words
        with pytest.raises(BROKEN):
            slow.result()
    assert left_behind() == []


def test_a_second_signal_ends_the_server_at_once(repository: Path, threads: ThreadPoolExecutor) -> None:
    with serving(repository) as served:
        group = served.server
        [slow] = ask(threads, served, ["sleep 60"])
        served.running.terminate()
        served.wait_for_words("Stopping")
        served.running.terminate()
        wait_until(lambda: not running_in(group))
        assert served.end() == 130
        with pytest.raises(BROKEN):
            slow.result()
    assert left_behind() == []


def test_a_server_with_a_dead_process_does_not_claim_a_clean_stop(repository: Path) -> None:
    with EmbeddedServer(repository) as server:
        os.kill(next(iter(server.stubs().values()))[0], signal.SIGKILL)
        wait_until(server.fault)
        assert not server.stop()
