"""Tensors as requests, ids, error codes and metrics: the parts of a generator's adapter that need no server."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

from hfx.client.errors import REASONS
from hfx.python_backends.engine.errors import (
    DeadlineExceeded,
    DoesNotFit,
    Draining,
    EngineClosed,
    EngineError,
    InvalidRequest,
    QueueFull,
    StepFailed,
)
from hfx.python_backends.engine.stats import Stats
from hfx.python_backends.serving.ipc import ENGINE_UNREACHABLE
from hfx.python_backends.serving.metrics import counts, histograms
from hfx.python_backends.serving.request import DECODED, CancelRegistry, GenerateRequest, parse_request
from hfx.python_backends.serving.response_writer import _CODES, code_of, reason_of


def parsed(**tensors: Any) -> GenerateRequest:
    return parse_request((name, value if isinstance(value, list) else [value]) for name, value in tensors.items())


def test_tensors_become_fields() -> None:
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
    assert request == GenerateRequest("Grüße", fields, streams=False, deadline=None, cancels="")


def test_a_timeout_is_a_deadline() -> None:
    before = time.monotonic()
    request = parsed(text_input=b"a", timeout_ms=1500, stream=True)
    assert request.deadline is not None and before + 1.5 <= request.deadline <= time.monotonic() + 1.5
    assert request.streams and not request.fields


def test_a_control_request_needs_no_text() -> None:
    assert parsed(cancel_request=b"some-id").cancels == "some-id"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": 7}, "text_input"),
        ({"text_input": b"a", "timeout_ms": 0}, "timeout_ms is 0; allowed: milliseconds, at least 1"),
        ({"text_input": b"a", "top_k": [1, 2]}, "top_k is .*one value"),
        *(
            ({"text_input": b"a", name: b"a\xff"}, f"{name} is .*UTF-8")
            for name in ("text_input", "stop_words", "long")
        ),
    ],
)
def test_what_is_no_request_is_refused(tensors: dict[str, Any], message: str) -> None:
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
        (DeadlineExceeded(), "CANCELLED", None),
        (StepFailed("failed"), "INTERNAL", None),
        (EngineError("other"), "INTERNAL", None),
        (ValueError("a bug"), "INTERNAL", None),
    ],
)
def test_every_error_has_its_code(error: Exception, code: str, reason: str | None) -> None:
    assert (code_of(error), reason_of(error)) == (code, reason)


def test_the_client_knows_every_reason() -> None:
    assert set(REASONS) == {ENGINE_UNREACHABLE, *(reason for _, _, reason, _ in _CODES)}


# Ids


def test_requests_are_cancelled_by_id() -> None:
    registry, cancelled = CancelRegistry(), []
    cancels = {name: partial(cancelled.append, name) for name in ("a", "b", "c", "without id")}
    ids = {"a": "1", "b": "1", "c": "2", "without id": ""}
    for name, request_id in ids.items():
        registry.add(request_id, cancels[name])
    registry.cancel("1")
    registry.cancel("")
    registry.remove("1", cancels["a"])
    registry.cancel("1")
    assert cancelled == ["a", "b", "b"]
    for name, request_id in ids.items():
        registry.remove(request_id, cancels[name])
    registry.cancel("1")
    assert cancelled == ["a", "b", "b"] and len(registry) == 0


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
