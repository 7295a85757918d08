"""What streams of requests over gRPC say of their end, cancellation by id, and the metrics of known traffic."""

from __future__ import annotations

import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.triton import EmbeddedServer
from tests.published import export_zoo

pytestmark = pytest.mark.triton

NARROW = 2  # rows of the model `narrow`, for which 32 requests may wait
LONGEST = 500  # tokens that a request of half a second has there, when all rows are in use
WAIT = 30.0


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a decoder, `stories` and, with few slots, `narrow`."""
    folder = tmp_path_factory.mktemp("generators")
    export_zoo("stories-gpt2", folder, "stories", "int8", "onnxruntime")
    export_zoo("stories-gpt2", folder, "narrow", "int8", "onnxruntime", slots=NARROW)
    return folder


@pytest.fixture(scope="module")
def served(generators: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves them."""
    with EmbeddedServer(generators) as running:
        yield running


def post(server: EmbeddedServer, path: str, **fields: Any) -> str:
    body = json.dumps(fields).encode()
    with urllib.request.urlopen(f"{server.http_url}/v2/models/{path}", data=body, timeout=60) as answer:
        return str(answer.read().decode())


def tensor(name: str, data_type: str, value: Any) -> grpc.InferInput:
    found = grpc.InferInput(name, [1, 1], data_type)
    numpy_type: Any = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "FP32": np.float32}[data_type]
    found.set_data_from_numpy(np.array([[value]], numpy_type))
    return found


def inputs(text: str = "Anna was", *more: grpc.InferInput, tokens: int = 12) -> list[grpc.InferInput]:
    counts = [tensor(name, "INT32", tokens) for name in ("max_tokens", "min_tokens")]
    return [tensor("text_input", "BYTES", text.encode()), *counts, *more]


STREAM = ("stream", "BOOL", True)


class Stream:
    """A gRPC stream to `model`; responses come from `next`, each with Triton's word whether it is the last."""

    def __init__(self, server: EmbeddedServer, model: str) -> None:
        self._model = model
        self._client = grpc.InferenceServerClient(server.grpc_url)
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, *tensors: grpc.InferInput, request_id: str = "") -> None:
        self._client.async_stream_infer(
            self._model, list(tensors), request_id=request_id, enable_empty_final_response=True
        )

    def next(self) -> tuple[Any, bool]:
        result, error = self._answers.get(timeout=WAIT)
        if error is not None:
            raise error
        return result, result.get_response().parameters["triton_final_response"].bool_param

    def rest(self) -> list[tuple[Any, bool]]:
        found = [self.next()]
        while not found[-1][1]:
            found.append(self.next())
        return found

    def leave(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def value(result: Any, name: str) -> Any:
    found = result.as_numpy(name)[0, 0]
    return found.decode() if isinstance(found, bytes) else found


def metric(server: EmbeddedServer, model: str, name: str, **labels: str) -> float:
    """The sum of the lines of a metric that have these labels."""
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT) as answer:
        lines = answer.read().decode().splitlines()
    wanted = {f'{label}="{text}"' for label, text in {**labels, "model": model}.items()}
    found = [line for line in lines if line.startswith(f"{name}{{") and all(each in line for each in wanted)]
    assert found, f"{name} is not on /metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def becomes(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_stream_has_one_final_response_and_it_carries_the_last_piece(served: EmbeddedServer) -> None:
    with Stream(served, "stories_stream") as stream:
        for tokens in (1, 2, 40):
            stream.send(*inputs("Anna was", tensor(*STREAM), tokens=tokens))
            responses = stream.rest()
            assert [bool(value(result, "finish_reason")) for result, _ in responses] == [last for _, last in responses]
            assert value(responses[-1][0], "output_tokens") == tokens
            text = "".join(value(result, "text_output") for result, _ in responses)
            assert (
                text
                == json.loads(
                    post(served, "stories/generate", text_input="Anna was", max_tokens=tokens, min_tokens=tokens)
                )["text_output"]
            )


def test_a_stream_goes_on_after_a_refused_request(served: EmbeddedServer) -> None:
    with Stream(served, "stories_stream") as stream:
        stream.send(*inputs("Anna was", tensor("temperature", "FP32", -1.0)))
        with pytest.raises(grpc.InferenceServerException, match=r"temperature is -1\.0; allowed:"):
            stream.next()
        stream.send(*inputs())
        assert [last for _, last in stream.rest()] == [True]


def test_a_request_is_cancelled_by_its_id(served: EmbeddedServer) -> None:
    with Stream(served, "narrow_stream") as stream, Stream(served, "narrow_stream") as control:
        for number in range(8 * NARROW):
            stream.send(*inputs(tokens=LONGEST), request_id=f"mine-{number}")
        for number in reversed(range(8 * NARROW)):
            control.send(*inputs(""), tensor("cancel_request", "BYTES", f"mine-{number}".encode()))
            ((answer, is_last),) = control.rest()
            assert (value(answer, "finish_reason"), value(answer, "text_output"), is_last) == ("cancelled", "", True)
        reasons = [value(stream.next()[0], "finish_reason") for _ in range(8 * NARROW)]
    assert set(reasons) <= {"cancelled", "length"} and reasons.count("cancelled") >= 4 * NARROW


def test_metrics_are_right_after_known_traffic(served: EmbeddedServer) -> None:
    counters = (
        "hfx_generated_tokens_total",
        "hfx_requests_completed_total",
        "hfx_time_to_first_token_seconds_count",
        "hfx_inter_token_seconds_count",
    )
    time.sleep(1.5)  # histograms are brought up to date every second, also with what earlier tests sent
    before = {name: metric(served, "stories", name) for name in counters}
    invalid = metric(served, "stories", "hfx_requests_refused_total", reason="invalid")
    with grpc.InferenceServerClient(served.grpc_url) as client:
        for _ in range(3):
            client.infer("stories", inputs(tokens=20))
        with pytest.raises(grpc.InferenceServerException):
            client.infer("stories", inputs("Anna", tensor("top_p", "FP32", float("nan"))))
    expected = dict(zip(counters, (60, 3, 3, 57), strict=True))
    assert becomes(lambda: {name: metric(served, "stories", name) - before[name] for name in counters} == expected)
    assert becomes(lambda: metric(served, "stories", "hfx_requests_refused_total", reason="invalid") == invalid + 1)
    for name in ("hfx_time_to_first_token_seconds", "hfx_inter_token_seconds"):
        count = metric(served, "stories", f"{name}_count")
        assert metric(served, "stories", f"{name}_bucket", le="+Inf") == count
        assert 0 <= metric(served, "stories", f"{name}_bucket", le="0.005") <= count
        assert metric(served, "stories", f"{name}_sum") > 0
    assert metric(served, "stories", "hfx_slots_used") + metric(served, "stories", "hfx_slots_free") == 32
