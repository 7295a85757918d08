"""The load generator against a server with known times.

By the client's clock a request never takes less time than by the server's; a busy machine decides how much longer it
takes. Counts are exact.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from hfx.client import ModelMetadata, TensorMetadata
from hfx.errors import HfxError, ModelUnknown, ServerUnreachable, UsageError
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Request, RequestSet
from hfx.perf.loadgen.generate import generate
from hfx.perf.loadgen.log import COLUMNS, LoadRun
from hfx.perf.loadgen.stats import run_of
from hfx.perf.measuring import MeasureSpec, Target, metadata
from hfx.perf.results import Distribution, Run, Subject
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.perf_fake_server import CLASSIFIER, HANG_SECONDS, INPUT_TOKENS, WRITER, FakeServer, orders

pytestmark = pytest.mark.slow
NEVER = threading.Event()  # is set
ROUNDING = 0.002  # of the histogram, relative


def measured(
    url: str,
    model: str,
    plan: Plan,
    requests: RequestSet,
    limits: LoadLimits,
    *,
    stream: bool = False,
    stop: threading.Event = NEVER,
) -> Run:
    served = metadata(Target(model + "_stream" * stream, url))
    spec = MeasureSpec(requests, limits, stream=stream)
    log = generate(LoadRun(Target(model, url), plan, spec, served, lambda progress: None, stop))
    return run_of(log, Subject(model, model, "builtin"), plan.load("", ""), plan)


def check_times(measured: Distribution | None, by_server: list[float], most: float) -> Distribution:
    """Check that no percentile is below the server's own, and that all times sum up to at most `most` seconds."""
    assert measured is not None and measured.count == len(by_server)
    times = sorted(by_server)
    for found, share in ((measured.min, 0.0), (measured.p50, 0.5), (measured.p90, 0.9), (measured.max, 1.0)):
        assert found / 1e3 >= times[max(0, math.ceil(share * len(times)) - 1)] * (1 - ROUNDING)
    assert measured.mean / 1e3 * measured.count <= most * (1 + ROUNDING)
    return measured


def workers() -> list[psutil.Process]:
    """Return the generator's processes, among all that other tests have started."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.ZombieProcess):
            found += [each] if "hfx.perf.loadgen.worker" in each.cmdline() else []
    return found


@contextmanager
def during_load(server: FakeServer, act: Callable[[], object], seconds: float = 0.0) -> Iterator[None]:
    """Call `act` some seconds after the first request."""

    def wait() -> None:
        wait_until(lambda: len(server.arrivals) > 0)
        time.sleep(seconds)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


# Times


def test_latency_percentiles_are_the_servers_times(server: FakeServer) -> None:
    mixed = orders(*["sleep 0.01"] * 60, *["sleep 0.06"] * 33, *["sleep 0.15"] * 7)
    run = measured(server.url, CLASSIFIER, Closed(4), mixed, LoadLimits(requests=200))
    assert run.requests.sent == run.requests.succeeded == len(server.texts) == 200
    check_times(run.latency, [times[-1] for times in server.times], most=4 * run.seconds)
    assert not run.interrupted and run.stable is None and run.tokens is None and not workers()


def test_ttft_tpot_and_gaps_of_a_stream_are_the_servers_times(server: FakeServer) -> None:
    run = measured(server.url, WRITER, Closed(3), orders("write 10 0.03"), LoadLimits(requests=12), stream=True)
    by_server = server.times
    latency = check_times(run.latency, [times[-1] for times in by_server], most=3 * run.seconds)
    ttft = check_times(run.ttft, [times[0] for times in by_server], most=latency.mean / 1e3 * 12)
    assert run.tpot is not None and ttft.mean + 9 * run.tpot.mean == pytest.approx(latency.mean, rel=0.01)
    assert run.gaps is not None and run.gaps.count == 12 * 9
    assert run.gaps.mean == pytest.approx(run.tpot.mean, rel=0.01)
    assert run.tokens is not None and run.tokens.each == (10,) * 12 and run.tokens.read == 12 * INPUT_TOKENS
    assert run.tokens_per_second == pytest.approx(10 * run.throughput)
    assert all(each["stream"] for each in server.inputs)


def test_a_stall_of_the_server_shows_in_the_latency_of_all_requests_due_in_it(server: FakeServer) -> None:
    """No coordinated omission: of 100 requests a second for 2 s, the 100 of a stall of 1 s wait 0 to 1 s."""
    server.stall = (0.5, 1.5)
    run = measured(server.url, CLASSIFIER, Open(100), orders("sleep 0.002"), LoadLimits(seconds=2.0))
    assert run.requests.sent == run.requests.succeeded == 200
    assert server.peak > 50, "sending waited for answers"
    # p90 waits 0.8 s: four fifths of the stall's requests wait for less.
    assert run.latency is not None and run.latency.p90 / 1e3 > 0.7 and run.latency.p99 / 1e3 > 0.9


@pytest.mark.full  # by the clock of a quiet machine
@pytest.mark.parametrize(
    ("plan", "reason"), [(Open(50), "after their time"), (Closed(2), "event loop was late")], ids=["open", "closed"]
)
def test_a_client_that_is_suspended_is_reported_as_saturated(plan: Plan, reason: str, server: FakeServer) -> None:
    def freeze() -> None:
        (worker,) = workers()
        with suppress(psutil.NoSuchProcess):
            while True:
                worker.suspend()
                time.sleep(0.12)
                worker.resume()
                time.sleep(0.2)

    with during_load(server, freeze):
        run = measured(server.url, CLASSIFIER, plan, orders("sleep 0.001"), LoadLimits(seconds=2.0))
    assert run.latency is not None and run.latency.p99 / 1e3 > 0.07
    assert run.client is not None and reason in run.client.saturated


# What is sent


def test_callers_are_as_many_as_ordered_and_each_waits_for_its_answer(server: FakeServer) -> None:
    run = measured(server.url, CLASSIFIER, Closed(7), orders("sleep 0.05"), LoadLimits(seconds=1.5))
    assert server.peak == 7
    assert run.throughput <= 7 / 0.05
    assert run.requests.sent == len(server.texts)


def test_requests_are_sent_in_turn_with_their_settings(server: FakeServer) -> None:
    run = measured(
        server.url, WRITER, Closed(1), orders("a", "b", "c", max_tokens=5), LoadLimits(requests=7, timeout=9)
    )  # fmt: skip
    assert server.texts == ["a", "b", "c", "a", "b", "c", "a"]
    assert {(each["max_tokens"], each["timeout_ms"]) for each in server.inputs} == {(5, 9000)}
    assert run.tokens is not None and run.tokens.written == 7
    assert (run.ttft, run.tpot, run.gaps) == (None, None, None)  # whole answers have no times of tokens


def test_what_the_server_can_t_take_is_refused_before_anything_is_sent(server: FakeServer) -> None:
    def refused(kind: type[HfxError], message: str, requests: RequestSet, url: str = "", model: str = "") -> None:
        with pytest.raises(kind, match=message):
            measured(url or server.url, model or CLASSIFIER, Closed(1), requests, LoadLimits(requests=1))

    refused(ModelUnknown, "has no model 'nobody'", orders("x"), model="nobody")
    refused(UsageError, "has no input color", orders("x", color=3))
    refused(UsageError, "needs a text_input", RequestSet((Request({}),), ""))
    refused(UsageError, "HTTP address", orders("x"), url=f"http://{server.url}")
    refused(UsageError, "half of a surrogate pair", orders("\ud800"))
    server.kill()
    refused(ServerUnreachable, "can't be reached", orders("x"))
    assert server.texts == []


def test_a_server_with_tls_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, signed = tmp_path / "key.pem", tmp_path / "signed.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*line.split(), "-keyout", key, "-out", signed], check=True, capture_output=True)
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(signed))  # read once a process: by the generator's
    model = ModelMetadata(CLASSIFIER, (TensorMetadata("text_input", "BYTES", (-1, 1)),), ())
    with FakeServer(credentials=grpc.ssl_server_credentials([(key.read_bytes(), signed.read_bytes())])) as server:
        spec = MeasureSpec(orders("x"), LoadLimits(requests=6))
        log = generate(LoadRun(Target(CLASSIFIER, server.url), Closed(2), spec, model, lambda progress: None, NEVER))
    assert (log.failures, len(log.rows)) == ({}, 6 * len(COLUMNS))


# What goes wrong


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_an_answer_in_time_is_a_timeout_and_is_ended_on_the_server(
    stream: bool, server: FakeServer
) -> None:
    limits = LoadLimits(requests=4, timeout=0.4)
    run = measured(server.url, WRITER, Closed(2), orders("hang", "x"), limits, stream=stream)
    assert (run.requests.succeeded, run.requests.timeouts, run.requests.errors) == (2, 2, {})
    assert "within 0.4 s" in run.requests.words["RequestTimeout"]
    wait_until(lambda: server.cancelled == 2)


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_counted_by_kind_with_the_first_message_of_each(server: FakeServer, stream: bool) -> None:
    failing = orders(
        "fail UNAVAILABLE Exceeds maximum queue size", "fail INVALID_ARGUMENT max_tokens is 0 — 100 %", "x",
        "fail INTERNAL the model is broken", "fail INTERNAL again", "fail CANCELLED by itself",
    )  # fmt: skip
    run = measured(server.url, WRITER, Closed(1), failing, LoadLimits(requests=12), stream=stream)
    assert run.requests.succeeded == 2 and run.requests.failed == 10
    assert run.requests.errors == {"ServerBusy": 2, "RequestRefused": 2, "ServerError": 4, "RequestCancelled": 2}
    assert run.requests.words["RequestRefused"] == "max_tokens is 0 — 100 %"
    assert run.requests.words["ServerError"] == "the model is broken"


def test_errors_within_streams_have_their_kinds_and_need_no_status(server: FakeServer) -> None:
    """Requesting a status ends Triton before 26.04 (triton-inference-server/server #8708)."""
    failing = orders("refuse [hfx:QUEUE_FULL] 8 requests wait", "write 2", "refuse max_tokens is 0")
    run = measured(server.url, WRITER, Closed(1), failing, LoadLimits(requests=6), stream=True)
    assert run.requests.succeeded == 2
    assert run.requests.errors == {"ServerBusy": 2, "RequestRefused": 2}
    assert len(server.headers) == 6 and not any("triton_grpc_error" in headers for headers in server.headers)


def test_a_stopped_load_returns_its_figures_without_errors(server: FakeServer) -> None:
    stop = threading.Event()
    endless = orders(*["sleep 0.02"] * 20, "hang")

    def act() -> None:
        wait_until(lambda: len(server.texts) > 30)
        stop.set()

    with during_load(server, act):
        run = measured(server.url, CLASSIFIER, Closed(2), endless, LoadLimits(seconds=60), stop=stop)
    assert run.seconds < HANG_SECONDS
    assert run.interrupted and run.requests.failed == 0 and run.requests.succeeded > 20
    wait_until(lambda: server.in_flight == 0)


def test_a_server_that_comes_back_is_used_again(server: FakeServer) -> None:
    started: list[FakeServer] = []

    def restart() -> None:
        server.kill()
        time.sleep(0.5)
        started.append(FakeServer(int(server.url.rpartition(":")[2])))

    with during_load(server, restart, seconds=0.5):
        run = measured(server.url, CLASSIFIER, Closed(2), orders("sleep 0.02"), LoadLimits(seconds=3.0))
    started[0].kill()
    assert not run.interrupted and run.requests.errors["ServerUnreachable"] > 0
    assert started[0].texts


def test_a_generator_that_dies_is_an_error(server: FakeServer) -> None:
    with (
        during_load(server, lambda: workers()[0].kill(), seconds=0.1),
        pytest.raises(HfxError, match="process ended with code -9"),
    ):
        measured(server.url, CLASSIFIER, Closed(1), orders("sleep 0.01"), LoadLimits(seconds=30))
