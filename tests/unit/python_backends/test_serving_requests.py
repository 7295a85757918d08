"""Tensors as requests, ids, error codes and metrics: the parts of a generator's adapter without a server."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from hfx import errors
from hfx.client.errors import BY_REASON
from hfx.python_backends.engine.core import Stats
from hfx.python_backends.engine.generation_settings import checked
from hfx.python_backends.errors import (
    REASONS,
    DeadlineExceeded,
    DoesNotFit,
    Draining,
    EngineClosed,
    EngineError,
    InvalidRequest,
    QueueFull,
    StepFailed,
    reason_of,
)
from hfx.python_backends.generation.pieces import Piece
from hfx.python_backends.serving.metrics import MetricsPublisher, counts, histograms
from hfx.python_backends.serving.request import DECODED, CancelRegistry, GenerateRequest
from tests.rigs.servers.serving_channels import Caller


def parsed(parameters: dict[str, Any] | None = None, /, **tensors: Any) -> GenerateRequest:
    request = GenerateRequest(Caller())
    values = ((name, value if isinstance(value, list) else [value]) for name, value in tensors.items())
    request.parse(values, json.dumps(parameters or {}))
    return request


def test_tensors_become_the_settings_of_a_request() -> None:
    request = parsed(
        text_input="Grüße".encode(),
        max_tokens=7,
        seed=2**64 - 1,
        do_sample=True,
        stop_words=[b"one", b"two"],
        early_stopping=b"true",
    )
    fields = {
        "max_tokens": 7, "seed": 2**64 - 1, "do_sample": True, "stop_words": ["one", "two"], "early_stopping": True,
    }  # fmt: skip
    assert (request.text, request.settings) == ("Grüße", fields)
    assert (request.streams, request.deadline, request.cancels) == (False, None, "")


def test_parameters_are_settings_but_for_those_that_triton_reads() -> None:
    own = {"id": "a", "priority": 1, "timeout": 10**6, "sequence_id": 7, "sequence_start": True, "sequence_end": True}
    own |= {"binary_data_output": True, "triton_enable_empty_final_response": True}
    request = parsed({"max_new_tokens": 7, "stop": "one", "stream": True, "timeout_ms": 9000, **own}, text_input=b"a")
    assert request.settings == {"max_new_tokens": 7, "stop": ["one"]}
    assert request.streams and request.deadline is not None


def test_a_parameter_may_repeat_but_not_contradict_its_tensor() -> None:
    assert parsed({"max_tokens": 5}, text_input=b"a", max_tokens=5).settings == {"max_tokens": 5}
    with pytest.raises(InvalidRequest, match="max_tokens is 6; it must be 5, as its tensor is"):
        parsed({"max_tokens": 6}, text_input=b"a", max_tokens=5)


def test_a_number_in_float32_is_the_decimal_that_was_written() -> None:
    written = {"epsilon_cutoff": 0.999, "repetition_penalty": 0.01, "top_p": 0.9}
    tensors: dict[str, Any] = {name: np.float32(value).item() for name, value in written.items()}
    request = parsed({"top_p": 0.9}, text_input=b"a", **tensors)
    assert request.settings == checked(request.settings) == written


@pytest.mark.parametrize(("name", "value"), [("stream", "yes"), ("timeout_ms", 1.5), ("cancel_request", 3)])
def test_a_parameter_of_the_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is {value!r}"):
        parsed({name: value}, text_input=b"a")


def test_requested_token_counts_add_up_over_the_pieces() -> None:
    request = parsed(text_input=b"a", return_num_input_tokens=True, return_num_output_tokens=True)
    pieces = [Piece("a", input_tokens=3, output_tokens=tokens) for tokens in (1, 4, 6)]
    sent = [request.outputs(piece) for piece in pieces]
    assert [outputs["num_output_tokens"] for outputs in sent] == [1, 3, 2]
    assert {outputs["num_input_tokens"] for outputs in sent} == {3}
    assert "num_input_tokens" not in parsed(text_input=b"a").outputs(pieces[0])


def test_a_timeout_is_a_deadline() -> None:
    before = time.monotonic()
    request = parsed(text_input=b"a", timeout_ms=1500, stream=True)
    assert request.deadline is not None and before + 1.5 <= request.deadline <= time.monotonic() + 1.5
    assert request.streams and not request.settings


def test_a_control_request_needs_no_text() -> None:
    assert parsed(cancel_request=b"some-id").cancels == "some-id"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": 7}, "text_input"),
        (
            {"text_input": b"a", "timeout_ms": 0},
            "timeout_ms is 0; it must be a whole number of milliseconds of at least 1",
        ),
        ({"text_input": b"a", "top_k": [1, 2]}, "top_k is .*one value"),
        *(
            ({"text_input": b"a", name: b"a\xff"}, f"{name} is .*UTF-8")
            for name in ("text_input", "stop_words", "long")
        ),
    ],
)
def test_an_invalid_request_is_refused_by_its_field(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parsed(**tensors)


def test_a_long_text_is_left_as_bytes_of_which_only_a_part_is_read() -> None:
    raw = b"a" * (DECODED + 1)
    assert parsed(text_input=raw).text == raw


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidRequest("top_p", 2, "0 to 1"), "INVALID_ARG", "invalid"),
        (DoesNotFit("tokens", 9, 8), "INVALID_ARG", "too_long"),
        (QueueFull("full"), "UNAVAILABLE", "queue_full"),
        (Draining("stopping"), "UNAVAILABLE", "draining"),
        (EngineClosed("closed"), "UNAVAILABLE", "draining"),
        (DeadlineExceeded(), "CANCELLED", ""),
        (StepFailed("failed"), "INTERNAL", ""),
        (EngineError("other"), "INTERNAL", ""),
        (ValueError("a bug"), "INTERNAL", ""),
    ],
)
def test_every_error_has_its_code(error: Exception, code: str, reason: str) -> None:
    assert (reason_of(error).code, reason_of(error).refusal) == (code, reason)


def test_the_client_knows_every_reason() -> None:
    assert BY_REASON.keys() == REASONS.keys()
    assert all(issubclass(kind, errors.ServerError) for kind in BY_REASON.values())


# Ids


def test_requests_are_cancelled_by_id() -> None:
    registry, cancelled = CancelRegistry(), []

    class Request(GenerateRequest):
        def cancel(self) -> None:
            cancelled.append(self)

    first, second, other, nameless = requests = [Request(Caller(), id) for id in ("1", "1", "2", "")]
    for request in requests:
        registry.add(request)
    registry.cancel("1")
    registry.cancel("")
    assert cancelled == [first, second]
    registry.remove(first)
    registry.cancel("1")
    assert cancelled == [first, second, second]
    for request in (first, second, other, nameless):
        registry.remove(request)
    registry.cancel("1")
    assert len(cancelled) == 3 and len(registry) == 0


# Metrics


def test_metrics_are_as_prometheus_expects() -> None:
    stats = Stats(tokens=5, cancelled=2, deadlines=1, slots_used=5, slots_free=3, waiting=4)
    for seconds in (0.004, 0.004, 0.3, 100.0):
        stats.first_token.observe(seconds)
    samples = [*counts(stats, Counter({"queue_full": 3})), *histograms(stats)]
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    expected = {
        "slots_used": 5, "slots_free": 3, "queue_length": 4, "generated_tokens_total": 5, "requests_cancelled_total": 2,
        "deadline_exceeded_total": 1, "time_to_first_token_seconds_count": 4,
        "time_to_first_token_seconds_sum": pytest.approx(100.308),
    }  # fmt: skip
    assert {name: values[f"hfx_{name}"] for name in expected} == expected
    refused = {sample.labels: sample.value for sample in samples if sample.name == "hfx_requests_refused_total"}
    reasons = {"invalid": 0, "too_long": 0, "queue_full": 3, "draining": 0}
    assert refused == {(("reason", reason),): count for reason, count in reasons.items()}
    buckets = [sample for sample in samples if sample.name == "hfx_time_to_first_token_seconds_bucket"]
    assert [bucket.value for bucket in buckets] == sorted(bucket.value for bucket in buckets)
    assert (buckets[0].value, buckets[-1].value, buckets[-1].labels) == (2, 4, (("le", "+Inf"),))


class Family:
    """Records what a publisher does with Triton's metric families, of which there is none outside Triton."""

    COUNTER, GAUGE = "counter", "gauge"
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(self, labels: dict[str, str]) -> Line:  # noqa: N802 - Triton's name
        return Line((self.name, tuple(labels.items())))


class Line:
    """A line of a Family."""

    def __init__(self, key: tuple[str, tuple[tuple[str, str], ...]]) -> None:
        self._key = key
        Family.values[key] = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        Family.values[self._key] = value

    def increment(self, value: float) -> None:
        """Add to the value."""
        Family.values[self._key] += value


def test_prompts_are_counted_by_shape_also_by_shapes_that_come_later() -> None:
    Family.values = {}
    stats = Stats(steps=4, steps_captured=3, device_cache_bytes=512, prompt_runs=Counter({(1, 8): 2}))
    publisher = MetricsPublisher(Family, "m", lambda: stats, Counter())
    stats.prompt_runs.update({(1, 8): 3, (32, 16): 1})
    stats.steps, stats.steps_captured, stats.device_cache_bytes, stats.capture_refusal = 14, 12, 1024, "If y" * 99
    publisher.close()
    model = ("model", "m")
    shapes = {labels: value for (name, labels), value in Family.values.items() if name == "hfx_prompt_runs_total"}
    assert shapes == {(model, ("rows", "1"), ("width", "8")): 3, (model, ("rows", "32"), ("width", "16")): 1}
    assert Family.values["hfx_captured_steps_total", (model,)] == 9
    assert Family.values["hfx_gpu_cache_bytes", (model,)] == 1024
    assert Family.values["hfx_capture_refused", (model, ("reason", "If y" * 50))] == 1
