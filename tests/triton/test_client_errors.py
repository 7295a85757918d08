"""The client's errors on a real server that refuses, is busy, is late, or goes away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hfx import errors
from hfx.client import Classification, Client
from hfx.triton import EmbeddedServer
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.short_servers import started
from tests.rigs.servers.toy_models import write_toy

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    repository = write_toy(tmp_path_factory.mktemp("models"))
    write_toy(repository, "narrow", queue="max_queue_size: 1")
    write_toy(repository, "hasty", queue="default_timeout_microseconds: 500000 timeout_action: REJECT")
    with started(repository) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    with Client(server.grpc_url, timeout=10, retries=0) as connected:
        yield connected


def test_many_texts_are_batched_and_come_back_in_order(server: EmbeddedServer, client: Client) -> None:
    before = server.statistics()["toy_tokenize"]
    texts = ["x" * (number % 90) for number in range(500)]
    assert [result.label for result in client.classify("toy", texts)] == [f"{len(text)} characters" for text in texts]
    after = server.statistics()["toy_tokenize"]
    assert after["execution_count"] - before["execution_count"] < len(texts)


def test_a_refusal_has_the_message_of_the_model(client: Client) -> None:
    with pytest.raises(errors.RequestRefused, match="the text is too blue"):
        client.classify("toy", "refuse the text is too blue")


def test_the_error_for_an_unknown_model_lists_the_served_models(client: Client) -> None:
    with pytest.raises(errors.ModelUnknown, match="no model 'nope'") as caught:
        client.classify("nope", "x")
    assert caught.value.fix == "It serves: hasty, narrow, toy."
    with pytest.raises(errors.ModelUnknown, match="no model 'nope'"):
        client.metadata("nope")


def behind(text: str, count: int) -> Iterator[str]:
    """Yield `text`, and, once it has long been running, `count` short texts."""
    yield text
    time.sleep(0.3)
    yield from ["x"] * count


@pytest.mark.parametrize("model", ["narrow", "hasty"])  # its queue is full; its queue's timeout passes
def test_a_full_or_timed_out_queue_raises_server_busy(model: str, client: Client) -> None:
    first, *others = client.each(partial(client.classify, model), behind("sleep 1.5", 20))
    assert isinstance(first, Classification)
    refused = [outcome for outcome in others if isinstance(outcome, errors.HfxError)]
    assert {type(outcome) for outcome in refused} == {errors.ServerBusy}
    assert len(refused) >= 18  # one request waits in the queue, one before it


def test_a_text_of_20_megabytes_arrives_whole(client: Client) -> None:
    assert client.classify("toy", "x" * (20 << 20)).label == f"{20 << 20} characters"


def test_a_server_that_goes_away_in_the_middle_is_unreachable(tmp_path: Path) -> None:
    with started(write_toy(tmp_path)) as server, Client(server.grpc_url, timeout=20, retries=0) as client:
        # Many times the number in flight: the first batch may hold a whole window.
        outcomes = client.infer_each("toy", ({"text_input": [text]} for text in ["x", *["sleep 0.2"] * 300]))
        next(outcomes)
        os.kill(server.pid, signal.SIGKILL)
        began = time.monotonic()
        failures = [outcome for outcome in outcomes if isinstance(outcome, errors.HfxError)]
        assert {type(failure) for failure in failures} == {errors.ServerUnreachable}
        assert time.monotonic() - began < 10
        assert not client.is_ready()
        server.restart()  # the same client finds it again
        wait_until(client.is_ready, seconds=20)
        assert client.classify("toy", "x").label == "1 characters"


def test_a_dead_model_process_is_a_server_error_that_advises_a_restart(tmp_path: Path) -> None:
    with started(write_toy(tmp_path)) as server, Client(server.grpc_url) as client:
        os.kill(server.stubs()["toy_tokenize_0_0"][0], signal.SIGKILL)
        with pytest.raises(errors.ServerError, match="not healthy") as caught:
            client.classify("toy", "x")
        assert type(caught.value) is errors.ServerError
        assert "restart" in caught.value.fix
