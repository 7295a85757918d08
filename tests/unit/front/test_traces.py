"""Spans of the front: only sampled requests have one, callers' traces continue, and no collector causes delays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.front.response import Response
from hfx.front.traces import Tracer
from hfx.python_backends.serving.traces import EXPORT_SECONDS
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import Seen, ask, connect, fronted, post, read_answer, stderr_file, upstream
from tests.rigs.servers.otlp_collector import Collector, collector

GENERATE = "/v2/models/toy/generate"
TRACE, PARENT = "1234567890abcdef1234567890abcdef", "fedcba0987654321"


async def nothing_sent(message: object) -> None:
    """Stand in for the send function of an answer without a client."""


@pytest.fixture
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as running:
        yield running


@pytest.fixture
def collected() -> Iterator[Collector]:
    with collector() as running:
        yield running


def test_a_request_has_a_span_that_triton_goes_on_with(triton: tuple[int, Seen], collected: Collector) -> None:
    with fronted(triton[0], otlp_endpoint=collected.url) as front:
        ask(front, post(b"{}", GENERATE, X_Request_ID="one"))
        ask(front, post(b"[" * 70, GENERATE))
        front.stop(10)  # waiting spans are sent before it ends
    first, second = sorted(collected.spans, key=lambda span: span.attributes["http.response.status_code"])
    assert (first.service, first.name, first.parent) == ("hfx", "POST /v2/models/{model}/generate", "")
    assert (
        first.attributes.items()
        >= {
            "http.response.status_code": "200",
            "gen_ai.request.model": "toy",
            "hfx.request_id": "one",
        }.items()
    )
    assert second.attributes["error.type"] == "bad_request"
    [(_, headers, _)] = triton[1].requests
    version, trace, parent, flags = headers["traceparent"].split("-")
    assert (version, trace, parent, int(flags, 16) & 1) == ("00", first.trace, first.id, 1)


def test_a_callers_trace_and_its_choice_go_on(triton: tuple[int, Seen], collected: Collector) -> None:
    with fronted(triton[0], otlp_endpoint=collected.url) as front:
        ask(front, post(b"{}", GENERATE, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=b"))
        ask(front, post(b"{}", GENERATE, traceparent=f"00-{TRACE}-{PARENT}-00"))
        ask(front, post(b"{}", GENERATE, traceparent="no trace at all"))
        front.stop(10)
    own, other = sorted(collected.spans, key=lambda span: span.parent, reverse=True)
    assert (own.trace, own.parent) == (TRACE, PARENT) and other.parent == ""
    sent = [headers for _, headers, _ in triton[1].requests]
    assert sent[0]["traceparent"] == f"00-{TRACE}-{own.id}-01" and sent[0]["tracestate"] == "a=b"
    assert "traceparent" not in sent[1]  # Triton would trace it
    assert sent[2]["traceparent"].startswith(f"00-{other.trace}")


def test_variables_say_which_requests_are_sampled(
    triton: tuple[int, Seen], collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "models")
    with fronted(triton[0], otlp_endpoint=collected.url) as front:
        ask(front, post(b"{}", GENERATE))
        ask(front, post(b"{}", GENERATE, traceparent=f"00-{TRACE}-{PARENT}-01"))
        front.stop(10)
    assert [(span.service, span.trace) for span in collected.spans] == [("models", TRACE)]


def test_without_a_collector_a_callers_trace_goes_on_as_it_came(triton: tuple[int, Seen]) -> None:
    with fronted(triton[0]) as front:
        ask(front, post(b"{}", GENERATE, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=b"))
    [(_, headers, _)] = triton[1].requests
    assert (headers["traceparent"], headers["tracestate"]) == (f"00-{TRACE}-{PARENT}-01", "a=b")


def test_without_opentelemetry_a_connection_stays_open_and_its_requests_are_logged(
    triton: tuple[int, Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ModuleNotFoundError('No module named opentelemetry')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], access_log="text") as front:
        with connect(front) as connection:
            for _ in range(3):
                connection.sendall(post(b"{}", GENERATE))
                assert read_answer(connection)[0] == 200
        wait_until(lambda: log.read_bytes().count(b"\n") >= 3)
    assert [line.split(" ")[4] for line in log.read_text().splitlines()] == ["200"] * 3


def test_a_collector_that_hangs_or_is_gone_holds_no_request_up(triton: tuple[int, Seen]) -> None:
    with collector(hangs=True) as hanging:
        for url in (hanging.url, "http://127.0.0.1:9"):
            with fronted(triton[0], otlp_endpoint=url) as front:
                began = time.monotonic()
                assert all(ask(front, post(b"{}", GENERATE))[0] == 200 for _ in range(100))
                assert time.monotonic() - began < 30
                assert front.stop(30)


def test_what_callers_send_is_not_printed_and_lost_spans_are_one_line(triton: tuple[int, Seen], tmp_path: Path) -> None:
    with stderr_file(tmp_path / "log") as log, fronted(triton[0], otlp_endpoint="http://127.0.0.1:9") as front:
        for state in ("no (member)", ",".join(f"k{number}=v" for number in range(40)), "a=b,a=c"):
            ask(front, post(b"{}", GENERATE, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate=state))
        assert front.stop(30)
    assert all(line.startswith("hfx: Spans are lost: ") for line in log.read_text().splitlines())
    assert log.read_text().count("\n") <= 1


def test_a_collector_that_redirects_gets_each_batch_once_and_is_named(triton: tuple[int, Seen], tmp_path: Path) -> None:
    with collector(status=307) as redirecting, stderr_file(tmp_path / "log") as log:
        with fronted(triton[0], otlp_endpoint=redirecting.url) as front:
            assert ask(front, post(b"{}", GENERATE))[0] == 200
            assert front.stop(30)
        assert redirecting.requests == 1
    assert "the collector redirects (status 307)" in log.read_text()


def test_the_end_waits_for_no_collector_that_hangs() -> None:
    with collector(hangs=True) as hanging:
        tracer, response = Tracer(hanging.url), Response(nothing_sent, b"id")
        for _ in range(2000):  # four batches, each of which may take EXPORT_SECONDS
            tracer.begin({}).end({"method": "GET"}, response)
        began = time.monotonic()
        tracer.flush()
        assert time.monotonic() - began < 2 * EXPORT_SECONDS


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://a b"])
def test_an_invalid_collector_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nowhere", "--otlp-endpoint", url]) == 2
    assert "OpenTelemetry collector" in capsys.readouterr().err
