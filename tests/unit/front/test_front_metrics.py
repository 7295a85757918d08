"""Metrics and access log of the front: requests, and reasons of refusals."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hfx.front.metrics import MOST_MODELS, Metrics
from hfx.front.refusals import refusal_label
from hfx.front.response import Response
from hfx.front.settings import Limits
from hfx.triton.front import Front
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import Seen, ask, connect, fronted, post, read_answer, stderr_file, upstream

INFER, GENERATE = "/v2/models/toy/infer", "/v2/models/a%20b/versions/2/generate"
KEY = "first-key-of-tests"


@pytest.fixture
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as running:
        yield running


def samples(front: Front, **headers: str) -> dict[tuple[str, ...], float]:
    """Return the front's own samples, by name and label values in the order of the labels' names."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    code, _, body = ask(front, f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
    assert code == 200
    text = body.decode().partition("}")[2] if body.startswith(b"{") else body.decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_model_and_status(triton: tuple[int, Seen]) -> None:
    with fronted(triton[0]) as front:
        for _ in range(3):
            ask(front, post(b"{}", GENERATE))
        ask(front, post(b"[" * 70, "/v2/models/x/generate"))
        ask(front, post(b"{}", "/nowhere/a"))
        ask(front, post(b"{}", "/v1/chat/completions"))
        found = samples(front)
    route = "/v2/models/{model}/generate"
    assert found["hfx_http_requests_total", "a b", route, "200"] == 3
    assert found["hfx_http_requests_total", "", route, "400"] == 1  # a model that has answered nothing is no label
    assert found["hfx_http_requests_total", "", "other", "404"] == 1
    assert found["hfx_http_requests_total", "", "/v1/chat/completions", "400"] == 1
    assert found["hfx_http_refusals_total", "", "bad_request"] == 2
    assert found["hfx_http_refusals_total", "", "unknown_url"] == 1
    assert found["hfx_http_first_byte_seconds_count", route] == 4
    assert found["hfx_http_first_byte_seconds_bucket", "+Inf", route] == 4
    assert found["hfx_http_request_bytes_total",] >= 3 * len(b"{}")
    assert found["hfx_http_response_bytes_total",] > 0 and found["hfx_http_connections",] >= 1
    assert found["hfx_http_requests_in_progress",] == 1  # this one
    assert found["hfx_restarts_total",] == 0 and found["hfx_start_time_seconds",] > 1e9


def test_incomplete_and_oversized_requests_are_counted(triton: tuple[int, Seen]) -> None:
    limits = Limits(head_seconds=1.0, idle_seconds=1.0)
    with fronted(triton[0], limits) as front, connect(front) as slow, connect(front):
        slow.sendall(b"POST /v2 HTTP/1.1\r\nHos")
        with connect(front) as long:
            long.sendall(b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n")
            assert read_answer(long)[0] == 414
        ended = [("hfx_http_connections_ended_total", reason) for reason in ("idle", "slow")]
        wait_until(lambda: not {*ended} - samples(front).keys())
        found = samples(front)
    assert found["hfx_http_refusals_total", "", "request_timeout"] == 1
    assert found["hfx_http_refusals_total", "", "request_uri_too_long"] == 1
    assert found["hfx_http_connections_ended_total", "slow"] == 1


def test_the_number_of_model_labels_is_bounded() -> None:
    metrics = Metrics(0.0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    for number in range(MOST_MODELS + 100):
        response = Response(send, b"id")
        response.status, response.model = 200, f"m{number}"
        metrics.add(response)
    assert metrics.text().count(b"hfx_http_requests_total{") == MOST_MODELS + 1


@pytest.mark.parametrize(
    ("status", "reason", "label"),
    [
        (503, "QUEUE_FULL", "queue_full"),
        (429, "RATE", "rate"),
        (400, "", "bad_request"),
        (400, "WHAT_A_CALLER_HAS_SENT", "bad_request"),
        (499, "", "status_499"),
    ],
)
def test_reasons_of_refusals_are_a_closed_set(status: int, reason: str, label: str) -> None:
    assert refusal_label(status, reason) == label


def test_the_access_log_in_json_has_fields_by_name(triton: tuple[int, Seen], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"web:{KEY}\n")

    def logged(log: Path) -> list[str]:
        return [line for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]

    settings = {"access_log": "json", "key_file": str(tmp_path / "keys")}
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], **settings) as front:
        ask(front, post(b"{}", GENERATE, Authorization=f"Bearer {KEY}", X_Request_ID="one"))
        ask(front, post(b"{}", INFER, Authorization="Bearer no-key-of-the-tests"))
        with connect(front) as leaving:
            leaving.sendall(post(b"hold", "/v2/models/toy/generate", Authorization=f"Bearer {KEY}"))
            assert triton[1].entered.acquire(timeout=60)
            leaving.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: len(logged(log)) >= 3)
    lines = logged(log)
    first, second, third = map(json.loads, lines)
    assert (
        first.items()
        >= {
            "client": "127.0.0.1",
            "method": "POST",
            "path": GENERATE,
            "route": "/v2/models/{model}/generate",
            "model": "a b",
            "status": 200,
            "key": "web",
            "request_bytes": 2,
            "request_id": "one",
        }.items()
    )
    assert 0 < first["first_byte_ms"] <= first["ms"] and "refusal" not in first
    assert (second["status"], second["refusal"]) == (401, "unauthorized") and "key" not in second
    assert third["status"] == 0 and third["key"] == "web"
    assert all(KEY not in line for line in lines)
