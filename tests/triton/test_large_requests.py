"""Requests that occupy an encoder: others are answered meanwhile, and a caller that disconnects ends its work."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from hfx.repository.edit import Edit, changed_copy
from hfx.triton.liveness import processes
from tests.conftest import publish
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.machine.tiers import full
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import ServeProcess, post, serving

pytestmark = pytest.mark.triton

LABELS = [f"a label with the number {number}" for number in range(1000)]
TEXT = "The weather in the garden was lovely."
INFER = "/v2/models/nli/infer"


# Python's steps take what they do with a large request from the rules that the native model has, too.
BOTH = pytest.mark.parametrize("served", ["native", full("python")], indirect=True)
NATIVE = pytest.mark.parametrize("served", ["native"], indirect=True)
STEPS = pytest.mark.parametrize("served", ["python"], indirect=True)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("nli-bart", folder, "nli", "int8", "onnxruntime")
    with serving(folder, "--steps", request.param) as running:
        yield running


def body(texts: int, labels: list[str]) -> dict[str, Any]:
    """Return a request in which the score of each label is independent of the other labels."""
    flat = labels * texts
    return {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [texts, 1], "data": [TEXT] * texts},
            {"name": "candidate_labels", "datatype": "BYTES", "shape": [texts, len(labels)], "data": flat},
            {"name": "multi_label", "datatype": "BOOL", "shape": [texts, 1], "data": [True] * texts},
        ]
    }


def scores(served: ServeProcess, texts: int, labels: list[str]) -> list[dict[str, float]]:
    status, answer = post(served.http_url + INFER, body(texts, labels))
    assert status == 200, answer
    found = {output["name"]: output["data"] for output in answer["outputs"]}
    rows = [slice(row * len(labels), (row + 1) * len(labels)) for row in range(texts)]
    return [dict(zip(found["label"][row], found["score"][row], strict=True)) for row in rows]


def cpu_seconds(served: ServeProcess, *pids: int) -> float:
    """Return the processor time of the processes `pids`, or of tritonserver and all its stubs."""
    return sum(
        each.cpu_seconds for each in processes() if each.group == served.server and each.pid in (pids or (each.pid,))
    )


@contextmanager
def open_request(served: ServeProcess, texts: int, model: str = "nli") -> Iterator[Future[None]]:
    """Send a request over gRPC and cancel it: Triton 2.51 does not notice that an HTTP client has disconnected.

    The future ends with the request.
    """
    ended: Future[None] = Future()
    with InferenceServerClient(served.ready["grpc_url"].removeprefix("grpc://")) as client:
        inputs = []
        for tensor in body(texts, LABELS)["inputs"]:
            inputs.append(InferInput(tensor["name"], tensor["shape"], tensor["datatype"]))
            values = [each.encode() if isinstance(each, str) else each for each in tensor["data"]]
            array = np.array(values, np.object_ if tensor["datatype"] == "BYTES" else np.bool_)
            inputs[-1].set_data_from_numpy(array.reshape(tensor["shape"]))
        call = client.async_infer(model, inputs, lambda result, error: ended.set_result(None))
        yield ended
        call.cancel()


@pytest.fixture(scope="module")
def whole(served: ServeProcess) -> float:
    """The processor time of a request with 4 texts."""
    before = cpu_seconds(served)
    scores(served, 4, LABELS)
    return cpu_seconds(served) - before


@BOTH
def test_a_label_has_the_same_score_among_few_and_many_labels(served: ServeProcess) -> None:
    many = scores(served, 2, LABELS)
    few = scores(served, 1, LABELS[:3] + LABELS[-40:])
    assert many[0] == many[1]
    assert few[0] == {label: many[0][label] for label in few[0]}


@NATIVE
def test_a_cancelled_request_is_not_computed_to_its_end(served: ServeProcess, whole: float) -> None:
    """Triton 2.51 does not tell the steps of an ensemble that a caller has cancelled."""
    before = cpu_seconds(served)
    with open_request(served, 16):
        time.sleep(1)
    assert len(scores(served, 1, ["good", "bad"])[0]) == 2  # behind it
    assert cpu_seconds(served) - before < 2 * whole  # of four times as much


@BOTH
def test_a_client_over_http_that_leaves_ends_its_work(served: ServeProcess, whole: float) -> None:
    host, _, port = served.http_url.rpartition("/")[2].partition(":")
    zero_shot = {"inputs": [TEXT] * 16, "parameters": {"candidate_labels": LABELS}}
    for path, content in ((INFER, body(16, LABELS)), ("/models/nli", zero_shot)):
        before = cpu_seconds(served)
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("POST", path, json.dumps(content), {"content-type": "application/json"})
        time.sleep(1)
        connection.close()
        time.sleep(0.5)
        assert len(scores(served, 1, ["good", "bad"])[0]) == 2
        wait_until(lambda: not_busy(served))
        assert cpu_seconds(served) - before < 2 * whole, path  # of four times as much


def not_busy(served: ServeProcess) -> bool:
    before = cpu_seconds(served)
    time.sleep(0.5)
    return cpu_seconds(served) - before < 0.1


@BOTH
def test_small_requests_are_answered_between_the_parts_of_a_large_one(served: ServeProcess) -> None:
    ended: list[str] = []

    def large() -> None:
        scores(served, 4, LABELS)
        ended.append("large")

    caller = threading.Thread(target=large)
    caller.start()
    time.sleep(0.5)
    for _ in range(5):
        assert len(scores(served, 1, ["good", "bad"])[0]) == 2
        ended.append("small")
    caller.join()
    assert ended == ["small"] * 5 + ["large"]


@STEPS
def test_small_requests_are_answered_while_a_large_one_is_tokenized(served: ServeProcess) -> None:
    """One instance of the native model tokenizes while others take requests."""
    tokenizer = served.stub("nli_tokenize")
    with open_request(served, 64, "nli_tokenize") as ended:
        time.sleep(0.5)
        for _ in range(5):
            assert len(scores(served, 1, ["good", "bad"])[0]) == 2
        assert not ended.done()
    wait_until(lambda: not_busy(served))
    before = cpu_seconds(served, tokenizer)
    scores(served, 1, ["good", "bad"])
    assert cpu_seconds(served, tokenizer) - before < 0.5  # the cancelled request is not tokenized to its end


def rows_of_the_net(served: ServeProcess) -> int:
    """Return the number of rows that have reached the net."""
    with urllib.request.urlopen(f"{served.http_url}/v2/models/nli_net/stats") as answer:
        return int(json.load(answer)["model_stats"][0]["inference_count"])


@pytest.mark.full
@STEPS
def test_large_requests_are_refused_before_they_are_tokenized(served: ServeProcess) -> None:
    """tests/unit has the limits of the queues of native and of Python steps."""
    url = served.http_url + INFER
    assert post(url, body(2, LABELS))[0] == 200  # the speed is known from here on
    before = rows_of_the_net(served)
    with ThreadPoolExecutor(12) as pool:
        statuses = [status for status, _ in pool.map(lambda _: post(url, body(4, LABELS)), range(12))]
    assert statuses.count(200) >= 3 and statuses.count(503) == 12 - statuses.count(200) >= 4
    rows = rows_of_the_net(served) - before
    assert 4 * statuses.count(200) <= rows < 4 * (statuses.count(200) + 3)  # a liveness probe has a row, too


@BOTH
def test_large_requests_one_after_the_other_do_not_keep_those_of_another_caller_out(served: ServeProcess) -> None:
    ended = threading.Event()

    def others() -> int:
        answered = 0
        while not ended.is_set():
            scores(served, 4, LABELS)
            answered += 1
        return answered

    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(others)
        time.sleep(0.5)
        try:
            for _ in range(3):
                assert len(scores(served, 1, LABELS[:350])[0]) == 350
        finally:
            ended.set()
        assert caller.result(timeout=120)


def test_callers_with_full_batches_of_long_texts_are_all_answered(tmp_path: Path) -> None:
    """16 callers may wait whatever the bound in seconds is, also with full batches of the longest texts."""
    export_zoo("sentiment-distilbert", tmp_path / "exported", "sentiment", "int8", "onnxruntime")
    edit = Edit("sentiment_tokenize", "parameters.max_queue_seconds", 0.1)
    changed_copy(tmp_path / "exported", "sentiment", [edit], tmp_path / "served", made_by="tests")
    texts = [f"{TEXT} " * 40] * 64
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [64, 1], "data": texts}
    with serving(tmp_path / "served") as running, ThreadPoolExecutor(12) as pool:
        url = f"{running.http_url}/v2/models/sentiment/infer"
        for _ in range(2):  # the speed is known by then
            statuses = [status for status, _ in pool.map(lambda _: post(url, {"inputs": [tensor]}), range(12))]
            assert statuses == [200] * 12


@STEPS
@pytest.mark.parametrize(("step", "seconds"), [("nli_net", 2.0), full("nli_tokenize", 1.0)])
def test_a_large_request_fails_when_its_process_dies(step: str, seconds: float, served: ServeProcess) -> None:
    again = "serving again after"
    before = served.words.count(again)
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(post, served.http_url + INFER, body(32, LABELS))
        time.sleep(seconds)
        os.kill(served.stub(step), signal.SIGKILL)
        status, answer = caller.result(timeout=60)
        assert status >= 500, answer
    wait_until(lambda: served.words.count(again) > before)
    assert len(scores(served, 1, ["good", "bad"])[0]) == 2


def test_long_question_contexts_do_not_block_other_requests(tmp_path: Path) -> None:
    """Question answering has Python steps only."""
    publish("answers-int8", tmp_path)
    with serving(tmp_path) as running:
        url = f"{running.http_url}/v2/models/answers-int8/infer"

        def asked(rows: int, context: str) -> dict[str, Any]:
            texts = {"question": ["Who is at home?"] * rows, "context": [context] * rows}
            return {
                "inputs": [
                    {"name": name, "datatype": "BYTES", "shape": [rows, 1], "data": data}
                    for name, data in texts.items()
                ]
            }

        long = asked(12, "Anna is at home. " * 1200)
        ended: list[str] = []

        def large() -> None:
            assert post(url, long)[0] == 200
            ended.append("large")

        caller = threading.Thread(target=large)
        caller.start()
        time.sleep(1)
        for _ in range(5):
            assert post(url, asked(1, "Anna is at home."))[0] == 200
            ended.append("small")
        caller.join()
        assert ended == ["small"] * 5 + ["large"]
