"""Generators through a real Triton: the same texts as in process, whole, in pieces, and through the relay."""

from __future__ import annotations

import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from hfx.local.generator import LocalGenerator
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.published import export_zoo

pytestmark = pytest.mark.triton

MODELS = {"stories": "stories-gpt2", "summaries": "summaries-bart"}
CALLERS = 8
NARROW = 2  # rows of the model `narrow`, for which 32 requests may wait
LONGEST = 500  # tokens that a request of half a second has there, when all rows are in use
WAIT = 30.0


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a decoder and an encoder-decoder, both int8."""
    folder = tmp_path_factory.mktemp("generators")
    for name, checkpoint in MODELS.items():
        export_zoo(checkpoint, folder, name, "int8", "onnxruntime")
    export_zoo(MODELS["stories"], folder, "narrow", "int8", "onnxruntime", slots=NARROW)
    return folder


@pytest.fixture(scope="module")
def served(generators: Path) -> Iterator[EmbeddedServer]:
    """A real Triton that serves them."""
    with EmbeddedServer(generators) as running:
        yield running


def texts_of(name: str, count: int) -> list[str]:
    if name == "stories":
        return [example.prompt for example in zoo.heldout("stories", count)]
    return [example.prompt + example.continuation for example in zoo.heldout("summaries", count)]


def post(server: EmbeddedServer, path: str, **fields: Any) -> str:
    body = json.dumps(fields).encode()
    with urllib.request.urlopen(f"{server.http_url}/v2/models/{path}", data=body, timeout=60) as answer:
        return str(answer.read().decode())


def events(server: EmbeddedServer, name: str, **fields: Any) -> list[dict[str, Any]]:
    """What /generate_stream sends."""
    lines = post(server, f"{name}_stream/generate_stream", stream=True, **fields).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def in_process(generators: Path, name: str, texts: Sequence[str]) -> list[Any]:
    with LocalGenerator.open(generators, name) as local:
        return [local.infer({"text_input": text}) for text in texts]


@pytest.mark.parametrize("name", MODELS)
def test_many_callers_get_the_texts_of_the_engine_in_process(
    name: str, generators: Path, served: EmbeddedServer
) -> None:
    texts = texts_of(name, 24)
    expected = in_process(generators, name, texts)
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda text: json.loads(post(served, f"{name}/generate", text_input=text)), texts))
    for answer, wanted in zip(found, expected, strict=True):
        assert {field: answer[field] for field in ("text_output", "finish_reason", "output_tokens")} == {
            field: wanted[field] for field in ("text_output", "finish_reason", "output_tokens")
        }


@pytest.mark.parametrize("name", MODELS)
def test_pieces_of_a_stream_are_the_whole_text(name: str, generators: Path, served: EmbeddedServer) -> None:
    texts = texts_of(name, 4)
    for text, wanted in zip(texts, in_process(generators, name, texts), strict=True):
        pieces = events(served, name, text_input=text)
        assert "".join(piece["text_output"] for piece in pieces) == wanted["text_output"]
        assert [bool(piece["finish_reason"]) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_story_comes_in_many_pieces(served: EmbeddedServer) -> None:
    assert len(events(served, "stories", text_input="Anna was", max_tokens=LONGEST, min_tokens=LONGEST)) > 5


def test_a_plain_grpc_call_is_answered(generators: Path, served: EmbeddedServer) -> None:
    text = texts_of("summaries", 1)[0]
    tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    with grpc.InferenceServerClient(served.grpc_url) as client:
        answer = client.infer("summaries", [tensor]).as_numpy("text_output")
    assert answer[0, 0].decode() == in_process(generators, "summaries", [text])[0]["text_output"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_input": "Anna", "temperature": -1.0}, "temperature is -1.0; allowed:"),
        ({"text_input": "Anna", "num_beams": 0}, "num_beams is 0; allowed:"),
        ({"text_input": "Anna", "max_tokens": 100_000}, "512"),
        ({"text_input": "Anna " * 2000}, "512"),
    ],
)
def test_what_can_not_be_done_is_refused(fields: dict[str, Any], message: str, served: EmbeddedServer) -> None:
    for model in ("stories", "stories_stream"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(served, f"{model}/generate", **fields)
        assert refused.value.code == 400 and message in json.loads(refused.value.read())["error"]


# gRPC


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


def test_log_probs_of_joined_pieces_are_one_a_token(served: EmbeddedServer) -> None:
    with Stream(served, "stories_stream") as stream:
        stream.send(*inputs("Anna was", tensor(*STREAM), tensor("return_log_probs", "BOOL", True), tokens=60))
        found = np.concatenate([result.as_numpy("output_log_probs")[0] for result, _ in stream.rest()])
    assert found.shape == (60,) and (found <= 0).all()


@pytest.mark.parametrize("model", ["narrow", "narrow_stream"])
def test_a_deadline_ends_a_request(model: str, served: EmbeddedServer) -> None:
    before = metric(served, "narrow", "hfx_deadline_exceeded_total")
    with pytest.raises(urllib.error.HTTPError) as late:
        post(served, f"{model}/generate", text_input="Anna", max_tokens=LONGEST, min_tokens=LONGEST, timeout_ms=5)
    assert json.loads(late.value.read())["error"].startswith("[hfx:DEADLINE_EXCEEDED] the deadline passed")
    assert becomes(lambda: metric(served, "narrow", "hfx_deadline_exceeded_total") == before + 1)


def test_error_codes_pass_through_the_relay(served: EmbeddedServer) -> None:
    refusals = {
        "CANCELLED": inputs("Anna", tensor("timeout_ms", "INT32", 5), tokens=LONGEST),
        "INVALID_ARGUMENT": inputs("Anna", tensor("timeout_ms", "INT32", 0)),
    }
    with grpc.InferenceServerClient(served.grpc_url) as client:
        for code, asked in refusals.items():
            with pytest.raises(grpc.InferenceServerException) as refused:
                client.infer("narrow", asked)
            assert refused.value.status() == f"StatusCode.{code}"


def test_text_that_is_no_utf8_is_refused(served: EmbeddedServer) -> None:
    asked = inputs()
    asked[0].set_data_from_numpy(np.array([[b"Anna \xff"]], np.object_))
    with (
        grpc.InferenceServerClient(served.grpc_url) as client,
        pytest.raises(grpc.InferenceServerException, match=r"text_input is .* UTF-8") as refused,
    ):
        client.infer("narrow", asked)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_full_queue_says_so_at_once_and_who_waits_is_answered(served: EmbeddedServer) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    calls = 3 * (NARROW + 16 * NARROW)
    with grpc.InferenceServerClient(served.grpc_url) as client:
        for _ in range(calls):
            client.async_infer("narrow", inputs(tokens=LONGEST), lambda result, error: answers.put((result, error)))
        found = [answers.get(timeout=4 * WAIT) for _ in range(calls)]
    errors = [error for _, error in found if error is not None]
    assert errors and {error.status() for error in errors} == {"StatusCode.UNAVAILABLE"}
    assert len(found) - len(errors) >= NARROW + 16 * NARROW
    assert {value(result, "output_tokens") for result, error in found if error is None} == {LONGEST}


def test_a_plain_call_that_is_left_is_cancelled_in_the_engine(served: EmbeddedServer) -> None:
    before = metric(served, "narrow", "hfx_requests_cancelled_total")
    with grpc.InferenceServerClient(served.grpc_url) as client:
        calls = [
            client.async_infer("narrow", inputs(tokens=LONGEST), lambda result, error: None)
            for _ in range(NARROW + 16 * NARROW)
        ]
        assert becomes(lambda: metric(served, "narrow", "hfx_queue_length") >= 8 * NARROW)
        for call in calls:
            call.cancel()
        assert becomes(lambda: metric(served, "narrow", "hfx_requests_cancelled_total") >= before + 8 * NARROW)
        assert becomes(lambda: metric(served, "narrow", "hfx_slots_free") == NARROW)


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


def test_streams_that_are_left_free_their_rows(served: EmbeddedServer) -> None:
    before = metric(served, "narrow", "hfx_requests_cancelled_total")
    for _ in range(8):
        streams = [Stream(served, "narrow_stream") for _ in range(2 * NARROW)]
        for stream in streams:
            stream.send(*inputs("Anna was", tensor(*STREAM), tokens=LONGEST))
        streams[0].next()
        for stream in streams:
            stream.leave()
    assert becomes(lambda: metric(served, "narrow", "hfx_slots_free") == NARROW)
    assert metric(served, "narrow", "hfx_requests_cancelled_total") >= before + 8
    assert json.loads(post(served, "narrow/generate", text_input="Anna was"))["finish_reason"]


def test_a_server_that_stops_finishes_what_it_has_taken(generators: Path) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    calls = NARROW + 4 * NARROW
    with EmbeddedServer(generators, models=["narrow"]) as server, grpc.InferenceServerClient(server.grpc_url) as client:
        for _ in range(calls):
            client.async_infer("narrow", inputs(tokens=LONGEST), lambda result, error: answers.put((result, error)))
        assert becomes(lambda: metric(server, "narrow", "hfx_queue_length") > 0)
        server.stop()
        found = [answers.get(timeout=WAIT) for _ in range(calls)]
    assert [error for _, error in found if error is not None] == []
    assert {value(result, "output_tokens") for result, _ in found} == {LONGEST}
