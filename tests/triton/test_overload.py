"""Overload of an encoder: the excess is refused at once, the other answers are correct, and nothing piles up."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from hfx.repository.edit import Edit, changed_copy
from hfx.triton import EmbeddedServer
from tests.conftest import publish
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.renamed import copy_renamed, seal
from tests.rigs.servers.short_servers import started

pytestmark = pytest.mark.triton

ANSWERS = "answers-int8"
BOUNDED, UNBOUNDED, TIMED = "bounded", "unbounded", "timed"
QUEUE, SECONDS = 24, 2  # requests that may wait for the first, seconds for the last
BATCH = 8
# Many windows: several times as much work for the net as for the tokenizer.
QUESTION, CONTEXT = "Who is at home?", "Anna is at home. " * 200


@dataclass(frozen=True)
class Outcome:
    """The end of one request: OK or its status, the answer's score, and the time of its end."""

    status: str
    score: bytes
    ended: float


@pytest.fixture(scope="module")
def overloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server of one model three times: with a queue bounded by requests, unbounded, and bounded by seconds."""
    folder = tmp_path_factory.mktemp("overload")
    publish(ANSWERS, folder / "exported")
    for name, requests, seconds in ((BOUNDED, QUEUE, 0), (UNBOUNDED, 0, 0), (TIMED, 0, SECONDS)):
        seal(folder / "exported", copy_renamed(folder / "exported", ANSWERS, folder / "exported", name))
        bound = {"max_queue_size": requests, "max_queue_seconds": seconds}
        edits = [Edit(f"{name}_tokenize", f"parameters.{key}", value) for key, value in bound.items()]
        edits += [Edit(f"{name}{step}", "max_batch_size", BATCH) for step in ("", "_tokenize", "_net", "_postprocess")]
        changed_copy(folder / "exported", name, edits, folder / "served", made_by="tests")
    with started(folder / "served") as running:
        yield running


async def send(client: triton.InferenceServerClient, model: str, timeout: float | None) -> Outcome:
    tensors = [triton.InferInput(name, [1, 1], "BYTES") for name in ("question", "context")]
    for tensor, text in zip(tensors, (QUESTION, CONTEXT), strict=True):
        tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    try:
        answer = await client.infer(model, tensors, client_timeout=timeout)
    except InferenceServerException as error:
        return Outcome(str(error.status()).removeprefix("StatusCode."), b"", time.monotonic())
    return Outcome("OK", answer.as_numpy("score").tobytes(), time.monotonic())


def load(server: EmbeddedServer, model: str, requests: int, timeout: float | None = None) -> list[Outcome]:
    """Return the outcomes of `requests` requests that are sent at once."""

    async def run() -> list[Outcome]:
        async with triton.InferenceServerClient(server.grpc_url) as client:
            return list(await asyncio.gather(*(send(client, model, timeout) for _ in range(requests))))

    return asyncio.run(run())


def test_requests_beyond_the_queue_are_refused_at_once_and_the_rest_right(overloaded: EmbeddedServer) -> None:
    pid, stubs = overloaded.pid, overloaded.stubs()
    alone = load(overloaded, BOUNDED, 1)[0]
    outcomes = load(overloaded, BOUNDED, 300)
    statuses = Counter(outcome.status for outcome in outcomes)
    assert set(statuses) == {"OK", "UNAVAILABLE"}
    assert statuses["OK"] >= QUEUE and statuses["UNAVAILABLE"] >= 100
    assert {outcome.score for outcome in outcomes if outcome.status == "OK"} == {alone.score}
    last_answer = max(outcome.ended for outcome in outcomes if outcome.status == "OK")
    assert sum(outcome.ended < last_answer for outcome in outcomes if outcome.status != "OK") >= 100
    assert load(overloaded, BOUNDED, 1)[0].score == alone.score
    assert (overloaded.pid, overloaded.stubs(), overloaded.fault()) == (pid, stubs, "")


def test_requests_whose_callers_have_left_are_not_computed(overloaded: EmbeddedServer) -> None:
    def answered() -> int:
        return int(overloaded.statistics()[f"{UNBOUNDED}_net"]["inference_stats"]["success"]["count"])

    alone = load(overloaded, UNBOUNDED, 1)[0]
    before, requests = answered(), 300
    outcomes = load(overloaded, UNBOUNDED, requests, timeout=1.0)
    assert Counter(outcome.status for outcome in outcomes)["DEADLINE_EXCEEDED"] > 0
    assert load(overloaded, UNBOUNDED, 1)[0].score == alone.score
    wait_until(lambda: answered() > before)
    assert answered() - before < requests // 2
    assert overloaded.fault() == ""


def test_requests_whose_callers_have_left_do_not_pile_up_before_the_tokenizer(overloaded: EmbeddedServer) -> None:
    """Triton 2.51 cancels no request that waits for the first step of an ensemble."""

    def waiting() -> int:
        with urllib.request.urlopen(overloaded.metrics_url) as answer:
            text = answer.read().decode()
        [gauge] = re.findall(rf'^nv_inference_pending_request_count{{model="{TIMED}_tokenize".*}} (\S+)$', text, re.M)
        return int(gauge)

    alone = load(overloaded, TIMED, 1)[0]
    for _ in range(3):
        load(overloaded, TIMED, 500, timeout=0.2)
    wait_until(lambda: waiting() == 0, "none waits", 5 * SECONDS)
    assert load(overloaded, TIMED, 1)[0].score == alone.score


@pytest.mark.full
def test_few_accepted_requests_miss_their_deadline_under_overload(overloaded: EmbeddedServer) -> None:
    pid, stubs = overloaded.pid, overloaded.stubs()
    alone = load(overloaded, TIMED, 1)[0]
    statuses: Counter[str] = Counter()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        outcomes = load(overloaded, TIMED, 400, timeout=5.0 * SECONDS)
        statuses.update(outcome.status for outcome in outcomes)
        assert {outcome.score for outcome in outcomes if outcome.status == "OK"} == {alone.score}
    assert set(statuses) <= {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert statuses["UNAVAILABLE"] > 0 and statuses["OK"] > 9 * statuses["DEADLINE_EXCEEDED"], statuses
    assert load(overloaded, TIMED, 1)[0].score == alone.score
    assert (overloaded.pid, overloaded.stubs(), overloaded.fault()) == (pid, stubs, "")
