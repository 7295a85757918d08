"""Tensors as requests, ids, error codes and metrics: the parts of a generator's adapter that need no server."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
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
from hfx.python_backends.responses.active_request import CancelRegistry
from hfx.python_backends.responses.codes import _CODES, code_of, reason_of
from hfx.python_backends.responses.generate_request import DECODED, GenerateRequest, parse_request
from hfx.python_backends.responses.ipc import ENGINE_UNREACHABLE
from hfx.python_backends.responses.metrics import counts, histograms


def parsed(**tensors: Any) -> GenerateRequest:
    return parse_request((name, np.array(value).reshape(-1).tolist()) for name, value in tensors.items())


def strings(*values: bytes) -> Any:
    return np.array(values, np.object_)


def test_tensors_become_fields() -> None:
    found = parsed(
        text_input=strings("Grüße".encode()),
        max_tokens=np.int32(7),
        seed=np.uint64(2**64 - 1),
        do_sample=np.bool_(True),
        stop_words=strings(b"one", b"two"),
        early_stopping=strings(b"true"),
    )
    assert found.text == "Grüße"
    assert found.fields == {
        "max_tokens": 7,
        "seed": 2**64 - 1,
        "do_sample": True,
        "stop_words": ["one", "two"],
        "early_stopping": True,
    }
    assert (found.streams, found.deadline, found.cancels) == (False, None, "")


def test_a_timeout_is_a_deadline() -> None:
    before = time.monotonic()
    found = parsed(text_input=strings(b"a"), timeout_ms=np.int32(1500), stream=np.bool_(True))
    assert found.deadline is not None and before + 1.5 <= found.deadline <= time.monotonic() + 1.5
    assert found.streams and not found.fields


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_is_at_least_a_millisecond(timeout: int) -> None:
    with pytest.raises(InvalidRequest, match=f"timeout_ms is {timeout}; allowed: milliseconds, at least 1"):
        parsed(text_input=strings(b"a"), timeout_ms=np.int32(timeout))


def test_a_text_is_needed() -> None:
    with pytest.raises(InvalidRequest, match="text_input"):
        parsed(max_tokens=np.int32(7))


def test_a_control_request_needs_no_text() -> None:
    assert parsed(cancel_request=strings(b"some-id")).cancels == "some-id"


@pytest.mark.parametrize("name", ["text_input", "stop_words", "long"])
def test_text_that_is_no_utf8_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is .*UTF-8"):
        parsed(**{"text_input": strings(b"a"), name: strings(b"a\xff")})


def test_a_long_text_is_left_as_bytes_of_which_only_a_part_is_read() -> None:
    raw = b"a" * (DECODED + 1)
    assert parsed(text_input=strings(raw)).text == raw


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
    assert set(REASONS) == {ENGINE_UNREACHABLE, *(reason for _, _, reason in _CODES)}


# Ids


def test_requests_are_cancelled_by_id() -> None:
    registry, cancelled = CancelRegistry(), []
    cancels = {name: lambda name=name: cancelled.append(name) for name in ("a", "b", "c", "nobody")}
    registry.add("1", cancels["a"])
    registry.add("1", cancels["b"])
    registry.add("2", cancels["c"])
    registry.add("", cancels["nobody"])
    registry.cancel("1")
    assert cancelled == ["a", "b"]
    registry.remove("1", cancels["a"])
    registry.cancel("1")
    assert cancelled == ["a", "b", "b"]
    for request_id, name in (("1", "b"), ("2", "c"), ("", "nobody"), ("never", "a")):
        registry.remove(request_id, cancels[name])
    registry.cancel("1")
    registry.cancel("")
    assert cancelled == ["a", "b", "b"] and len(registry) == 0


# Metrics


def test_figures_are_as_prometheus_expects() -> None:
    counters = Stats(tokens=5, cancelled=2, deadlines=1)
    for seconds in (0.004, 0.004, 0.3, 100.0):
        counters.first_token.observe(seconds)
    stats = counters.snapshot(8, 3, 4, 9)
    lines = {
        (line.name, line.labels): line.value
        for line in (*counts(stats, Counter({"queue_full": 3})), *histograms(stats))
    }
    assert lines["hfx_slots_used", ()] == 5 and lines["hfx_slots_free", ()] == 3 and lines["hfx_queue_length", ()] == 4
    assert lines["hfx_generated_tokens_total", ()] == 5
    assert lines["hfx_requests_cancelled_total", ()] == 2
    assert lines["hfx_deadline_exceeded_total", ()] == 1
    refused = "hfx_requests_refused_total"
    assert [lines[refused, (("reason", reason),)] for reason in ("invalid", "too_long", "queue_full", "draining")] == [
        0, 0, 3, 0,
    ]  # fmt: skip
    buckets = [value for (name, _), value in lines.items() if name == "hfx_time_to_first_token_seconds_bucket"]
    assert buckets == sorted(buckets) and (buckets[0], buckets[-1]) == (2, 4)
    assert lines["hfx_time_to_first_token_seconds_bucket", (("le", "+Inf"),)] == 4
    assert lines["hfx_time_to_first_token_seconds_count", ()] == 4
    assert lines["hfx_time_to_first_token_seconds_sum", ()] == pytest.approx(100.308)
