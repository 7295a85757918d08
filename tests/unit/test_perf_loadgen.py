"""The generator against a server whose times are known.

Tolerances: by the client's clock a request may take LATE longer than by the server's, which is a busy machine's doing;
it can't take less. What is counted is exact.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from hfx.errors import HfxError, ModelUnknown, ServerUnreachable, UsageError
from hfx.perf.load import Closed, Limits, Open, Plan, Request, RequestSet, Slo
from hfx.perf.loadgen.generate import generate
from hfx.perf.loadgen.log import COLUMNS, Progress
from hfx.perf.loadgen.stats import run_of
from hfx.perf.results import Distribution, Run, Subject
from tests.unit.perf_fake_server import CLASSIFIER, INPUT_TOKENS, WRITER, FakeServer, Service, fake_server

pytestmark = pytest.mark.slow
LATE = 0.04  # seconds
ROUNDING = 0.002  # of the histogram, relative


def workers() -> list[psutil.Process]:
    """The generator's processes, among all that other tests have started."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.ZombieProcess):  # nobody has waited for it yet
            found += [each] if "hfx.perf.loadgen.worker" in each.cmdline() else []
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def afterwards(server: FakeServer, seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Act some seconds after the first request has come."""

    def wait() -> None:
        wait_until(lambda: len(server.service.arrivals) > 0)
        time.sleep(seconds)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


@contextmanager
def freezing(server: FakeServer, every: float, seconds: float) -> Iterator[None]:
    """The generator stands still for so many seconds, again and again, once it has begun."""
    ended = threading.Event()

    def freeze() -> None:
        wait_until(lambda: len(server.service.arrivals) > 0)
        (worker,) = workers()
        with suppress(psutil.NoSuchProcess):
            while not ended.wait(every):
                worker.suspend()
                time.sleep(seconds)
                worker.resume()

    thread = threading.Thread(target=freeze)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def restarted(server: FakeServer, after: float, pause: float) -> Iterator[Service]:
    """The server dies some seconds after its first request, and another one takes its place."""
    second, port = Service(), int(server.url.rpartition(":")[2])
    places: list[FakeServer] = []

    def restart() -> None:
        server.kill()
        time.sleep(pause)
        places.append(FakeServer(second, port))

    with afterwards(server, after, restart):
        yield second
    places[0].kill()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def asks(*texts: str, **settings: int) -> RequestSet:
    shared = {name: (value,) for name, value in settings.items()}
    return RequestSet(tuple(Request({"text_input": (text,), **shared}) for text in texts), "orders")


def measured(
    url: str, model: str, plan: Plan, requests: RequestSet, limits: Limits, slo: Slo | None = None, **others: Any
) -> Run:
    log = generate(url, model, plan, requests, limits, **others)
    return run_of(log, Subject(model, model, "builtin"), plan.load(requests.words, limits.words), plan, slo)


def check_times(found: Distribution | None, by_server: list[float], least: float) -> None:
    """Percentiles are those of the server's own clock and LATE more at most; nothing took less than LEAST."""
    assert found is not None and found.count == len(by_server)
    assert found.min / 1e3 >= least * (1 - ROUNDING)
    ordered = sorted(by_server)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
        expected = ordered[math.ceil(share * len(ordered)) - 1]
        value = getattr(found, name) / 1e3
        late = LATE if name == "p50" else 2 * LATE
        assert expected * (1 - ROUNDING) <= value <= expected + late, f"{name} is {value}, not {expected}"


def test_percentiles_are_the_servers_times(server: FakeServer) -> None:
    orders = asks(*["sleep 0.01"] * 60, *["sleep 0.06"] * 33, *["sleep 0.15"] * 7)
    found = measured(server.url, CLASSIFIER, Closed(4), orders, Limits(requests=200))
    assert found.requests.sent == found.requests.succeeded == len(server.service.texts) == 200
    check_times(found.latency, [times[-1] for times in server.service.times], least=0.01)
    assert found.latency is not None
    by_order = [getattr(found.latency, name) / 1e3 for name in ("p50", "p90", "p95")]
    assert by_order == pytest.approx([0.01, 0.06, 0.15], abs=LATE)
    assert not found.interrupted and found.stable is None and found.tokens is None


def test_callers_are_as_many_as_asked_for_and_each_waits_for_its_answer(server: FakeServer) -> None:
    found = measured(server.url, CLASSIFIER, Closed(7), asks("sleep 0.05"), Limits(seconds=1.5))
    assert server.service.peak == 7
    assert found.throughput <= 7 / 0.05
    assert found.requests.sent == len(server.service.texts)


def test_requests_are_asked_in_turn_with_their_settings(server: FakeServer) -> None:
    measured(server.url, WRITER, Closed(1), asks("a", "b", "c", max_tokens=5), Limits(requests=7, timeout=9))
    assert server.service.texts == ["a", "b", "c", "a", "b", "c", "a"]
    assert {each["max_tokens"] for each in server.service.inputs} == {5}
    assert {each["timeout_ms"] for each in server.service.inputs} == {9000}


@pytest.mark.full  # by the clock of a quiet machine
def test_a_stall_of_the_server_shows_in_the_latency_of_all_who_were_due_in_it(server: FakeServer) -> None:
    """No coordinated omission: 100 a second for 2 s, of which one is a stall; then the 100 of it wait 0 to 1 s."""
    server.service.stall = (0.5, 1.5)
    found = measured(server.url, CLASSIFIER, Open(100), asks("sleep 0.002"), Limits(seconds=2.0))
    assert found.requests.sent == found.requests.succeeded == 200
    spread = server.service.arrivals[-1] - server.service.arrivals[0]
    assert spread == pytest.approx(1.99, abs=0.1), "sending waited for answers"
    # Half of all are not held up; p90 waits 0.8 s: four fifths of the stall's requests wait for less.
    assert found.latency is not None and found.latency.min / 1e3 < LATE
    assert found.latency.p90 / 1e3 == pytest.approx(0.8, abs=0.1)
    assert found.latency.p99 / 1e3 == pytest.approx(0.98, abs=0.1)


@pytest.mark.full  # by the clock of a quiet machine
def test_callers_who_wait_hardly_see_the_same_stall(server: FakeServer) -> None:
    server.service.stall = (0.5, 1.5)
    found = measured(server.url, CLASSIFIER, Closed(1), asks("sleep 0.002"), Limits(seconds=2.0))
    assert found.latency is not None and found.latency.max / 1e3 > 0.9
    assert found.latency.p95 / 1e3 < LATE


@pytest.mark.full  # by the clock of a quiet machine
def test_latency_counts_from_the_moment_a_request_was_due_however_late_it_is_sent(server: FakeServer) -> None:
    """The client itself stands still: the server answers in a millisecond, and yet those requests took long."""
    with freezing(server, every=0.25, seconds=0.12):
        found = measured(server.url, CLASSIFIER, Open(50), asks("sleep 0.001"), Limits(seconds=2.0))
    assert found.requests.sent == 100
    assert found.latency is not None and found.latency.p99 / 1e3 > 0.07
    assert found.client is not None and "after their time" in found.client.saturated


@pytest.mark.full  # by the clock of a quiet machine
def test_a_client_that_stands_still_says_so(server: FakeServer) -> None:
    with freezing(server, every=0.2, seconds=0.1):
        found = measured(server.url, CLASSIFIER, Closed(2), asks("sleep 0.01"), Limits(seconds=2.0))
    assert found.client is not None and "event loop was late" in found.client.saturated
    assert found.client.lag_p99 is not None and found.client.lag_p99 > 40


@pytest.mark.full  # by the clock of a quiet machine
def test_a_client_that_uses_all_of_a_core_says_so(server: FakeServer) -> None:
    """More than one event loop can send: what it could not send in time is its own fault."""
    found = measured(server.url, CLASSIFIER, Open(1_000_000), asks("x"), Limits(requests=800))
    assert found.requests.succeeded == 800
    assert found.client is not None and found.client.saturated


def test_goodput_is_the_share_within_the_service_level(server: FakeServer) -> None:
    orders = asks("sleep 0.01", "sleep 0.3", "sleep 0.01", "fail INTERNAL no")
    found = measured(server.url, CLASSIFIER, Closed(4), orders, Limits(requests=40), Slo.parse("latency<200ms"))
    assert found.goodput == 0.5


def test_times_of_a_stream(server: FakeServer) -> None:
    found = measured(server.url, WRITER, Closed(3), asks("write 10 0.03"), Limits(requests=12), stream=True)
    assert found.requests.succeeded == 12
    by_server = server.service.times
    check_times(found.ttft, [times[0] for times in by_server], least=0.03)
    check_times(found.latency, [times[-1] for times in by_server], least=0.3)
    between = statistics.median((times[-1] - times[0]) / 9 for times in by_server)
    assert found.tpot is not None and found.tpot.p50 / 1e3 == pytest.approx(between, abs=0.01)
    assert found.gaps is not None and found.gaps.count == 12 * 9
    assert found.gaps.mean / 1e3 == pytest.approx(found.tpot.mean / 1e3, rel=0.01)
    assert found.tokens is not None and found.tokens.each == (10,) * 12 and found.tokens.read == 12 * INPUT_TOKENS
    assert found.tokens_per_second == pytest.approx(10 * found.throughput)
    assert all(each["stream"] for each in server.service.inputs)


def test_a_generator_that_answers_whole_has_tokens_but_no_times_of_them(server: FakeServer) -> None:
    found = measured(server.url, WRITER, Closed(2), asks("write 5 0.01"), Limits(requests=6))
    assert found.tokens is not None and found.tokens.written == 30
    assert (found.ttft, found.tpot, found.gaps) == (None, None, None)


def test_what_is_sent_in_the_warm_up_does_not_count(server: FakeServer) -> None:
    server.service.stall = (0.0, 0.4)
    limits = Limits(requests=30, warmup_seconds=0.6)
    found = measured(server.url, CLASSIFIER, Closed(2), asks("sleep 0.01"), limits)
    assert found.requests.sent == 30 < len(server.service.texts)
    check_times(found.latency, [times[-1] for times in server.service.times[-30:]], least=0.01)
    server.service.inputs.clear()
    measured(server.url, CLASSIFIER, Closed(2), asks("a", "b"), Limits(requests=4, warmup_requests=6))
    assert len(server.service.texts) == 10


def test_all_at_once_comes_at_once_after_its_warm_up(server: FakeServer) -> None:
    found = measured(
        server.url, CLASSIFIER, Open(arrivals="burst"), asks("sleep 0.8"), Limits(requests=40, warmup_requests=2)
    )
    assert found.requests.sent == 40 and server.service.peak == 40
    assert server.service.arrivals[-1] - server.service.arrivals[2] < 0.7
    assert found.throughput <= 40 / 0.8


def test_bursts_and_traces_come_when_they_are_due(server: FakeServer) -> None:
    measured(server.url, CLASSIFIER, Open(10, "burst", burst=3), asks("x"), Limits(requests=6))
    first, second = server.service.arrivals[:3], server.service.arrivals[3:]
    assert max(first) - min(first) < LATE and min(second) - min(first) == pytest.approx(0.3, abs=LATE)
    server.service.arrivals.clear()
    measured(server.url, CLASSIFIER, Open(arrivals="trace", trace=(0.0, 0.1, 0.5)), asks("x"), Limits())
    begin = server.service.arrivals[0]
    assert [each - begin for each in server.service.arrivals] == pytest.approx([0, 0.1, 0.5], abs=LATE)


def test_a_request_without_an_answer_in_time_is_a_timeout_and_is_ended_on_the_server(server: FakeServer) -> None:
    for stream in (False, True):
        found = measured(
            server.url, WRITER, Closed(2), asks("hang", "x"), Limits(requests=4, timeout=0.4), stream=stream
        )
        assert (found.requests.succeeded, found.requests.timeouts, found.requests.errors) == (2, 2, {})
        assert "within 0.4 s" in found.requests.words["RequestTimeout"]
    wait_until(lambda: server.service.left == 4)


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_counted_by_kind_with_the_first_words_of_each(server: FakeServer, stream: bool) -> None:
    orders = asks(
        "fail UNAVAILABLE Exceeds maximum queue size", "fail INVALID_ARGUMENT max_tokens is 0 — 100 %", "x",
        "fail INTERNAL the model is broken", "fail INTERNAL again", "fail CANCELLED by itself",
    )  # fmt: skip
    found = measured(server.url, WRITER, Closed(1), orders, Limits(requests=12), stream=stream)
    assert found.requests.succeeded == 2 and found.requests.failed == 10
    assert found.requests.errors == {"ServerBusy": 2, "RequestRefused": 2, "ServerError": 4, "RequestCancelled": 2}
    assert found.requests.words["RequestRefused"] == "max_tokens is 0 — 100 %"
    assert found.requests.words["ServerError"] == "the model is broken"


def test_nothing_that_succeeds_is_a_result_too(server: FakeServer) -> None:
    found = measured(server.url, CLASSIFIER, Closed(1), asks("fail INTERNAL no"), Limits(requests=3))
    assert found.requests.succeeded == 0 and found.latency is None and found.throughput == 0


def test_a_steady_server_is_stable_before_the_limit(server: FakeServer) -> None:
    limits = Limits(seconds=20, stable=40, window=0.4)
    found = measured(server.url, CLASSIFIER, Closed(4), asks("sleep 0.02"), limits)
    assert found.stable is True and not found.interrupted
    assert found.seconds < 10
    assert found.requests.sent < len(server.service.texts) or found.seconds < 2


@pytest.mark.full  # by the clock of a quiet machine
def test_a_server_that_gets_slower_is_not_stable(server: FakeServer) -> None:
    slower = asks(*(f"sleep {0.005 * 1.03**number}" for number in range(200)))
    found = measured(server.url, CLASSIFIER, Closed(4), slower, Limits(seconds=2.0, stable=5, window=0.3))
    assert found.stable is False
    assert found.requests.sent == len(server.service.texts)


def test_stopping_gives_what_there_is_and_no_errors(server: FakeServer) -> None:
    stop = threading.Event()
    orders = asks(*["sleep 0.02"] * 20, "hang")
    with afterwards(server, 1.0, stop.set):
        found = measured(server.url, CLASSIFIER, Closed(2), orders, Limits(seconds=60), stop=stop)
    assert found.seconds < 5
    assert found.interrupted and found.requests.errors == {} and found.requests.timeouts == 0
    assert found.requests.sent == found.requests.succeeded > 20
    wait_until(lambda: server.service.in_flight == 0)


def test_a_server_that_dies_ends_the_run_with_what_there_is(server: FakeServer) -> None:
    with afterwards(server, 1.0, server.kill):
        found = measured(server.url, CLASSIFIER, Closed(3), asks("sleep 0.02"), Limits(seconds=60))
    assert found.seconds < 10
    assert found.interrupted and any("gone" in note for note in found.notes)
    assert found.requests.succeeded > 20 and set(found.requests.errors) <= {"ServerUnreachable", "RequestCancelled"}
    assert found.requests.errors["ServerUnreachable"] < 200, "callers did not wait"


def test_a_server_that_comes_back_is_asked_on(server: FakeServer) -> None:
    with restarted(server, after=0.5, pause=0.5) as second:
        found = measured(server.url, CLASSIFIER, Closed(2), asks("sleep 0.02"), Limits(seconds=3.0))
        assert not found.interrupted and found.requests.errors["ServerUnreachable"] > 0
        assert len(second.texts) > 10


def test_what_can_not_be_asked_is_told_before_anything_is_sent(server: FakeServer) -> None:
    with pytest.raises(ModelUnknown, match="has no model 'nobody'"):
        measured(server.url, "nobody", Closed(1), asks("x"), Limits(requests=1))
    with pytest.raises(UsageError, match="has no input color"):
        measured(server.url, CLASSIFIER, Closed(1), asks("x", color=3), Limits(requests=1))
    with pytest.raises(UsageError, match="needs a text_input"):
        measured(server.url, CLASSIFIER, Closed(1), RequestSet((Request({}),), ""), Limits(requests=1))
    with pytest.raises(UsageError, match="HTTP address"):
        measured(f"http://{server.url}", CLASSIFIER, Closed(1), asks("x"), Limits(requests=1))
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        measured(server.url, CLASSIFIER, Closed(1), asks("\ud800"), Limits(requests=1))
    server.kill()
    with pytest.raises(ServerUnreachable):
        measured(server.url, CLASSIFIER, Closed(1), asks("x"), Limits(requests=1))
    assert server.service.texts == []


def test_progress_tells_the_phases_in_order(server: FakeServer) -> None:
    told: list[Progress] = []
    measured(
        server.url, CLASSIFIER, Closed(2), asks("sleep 0.02"), Limits(seconds=1.2, warmup_seconds=0.6),
        watch=told.append,
    )  # fmt: skip
    phases = [phase for phase, _ in itertools.groupby(each.phase for each in told)]
    assert phases == ["warmup", "counted", "draining"]
    counted = [each for each in told if each.phase == "counted"]
    assert len(counted) >= 3 and counted[0].succeeded == 0
    assert all(earlier.sent <= later.sent for earlier, later in itertools.pairwise(counted))
    last = counted[-1]
    assert last.p50 is not None and last.p99 is not None and 20 <= last.p50 <= last.p99
    assert 0 < last.throughput <= 110


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_takes_few_calls_at_a_time_gets_all(stream: bool) -> None:
    orders = asks("write 3 0.02", "fail INTERNAL no", "write 3 0.02", "fail CANCELLED by itself")
    with fake_server(Service(streams=100)) as server:
        found = measured(server.url, WRITER, Closed(6), orders, Limits(requests=40), stream=stream)
    assert found.requests.succeeded == 20
    assert found.requests.errors == {"ServerError": 10, "RequestCancelled": 10}
    assert found.tokens is not None and found.tokens.written == 60
    assert (found.ttft is not None) == stream


def test_a_server_with_tls_is_measured(tmp_path: Path) -> None:
    key, signed = tmp_path / "key.pem", tmp_path / "signed.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*line.split(), "-keyout", key, "-out", signed], check=True, capture_output=True)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), signed.read_bytes())])
    program = (
        "import sys; from hfx.perf.load import *; from hfx.perf.loadgen.generate import generate\n"
        "requests = RequestSet((Request({'text_input': ('write 3 0.01',)}),), '')\n"
        "for stream in (False, True):\n"
        f"    log = generate(sys.argv[1], {WRITER!r}, Closed(2), requests, Limits(requests=6), stream)\n"
        "    print(log.failures, len(log.rows))"
    )
    environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(signed)}  # read once a process
    with fake_server(credentials=credentials) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, server.url], env=environment, capture_output=True, text=True, check=True
        )
    assert done.stdout == f"{{}} {6 * len(COLUMNS)}\n" * 2


def test_long_texts_arrive_whole(server: FakeServer) -> None:
    """Longer than a frame, and than what may be sent before the server asks for more."""
    text = "word " * 500_000
    found = measured(server.url, CLASSIFIER, Closed(3), asks(text), Limits(requests=6))
    assert found.requests.succeeded == 6, found.requests.words
    assert set(server.service.texts) == {text}


def test_the_process_of_the_generator_ends_with_it(server: FakeServer) -> None:
    measured(server.url, CLASSIFIER, Closed(1), asks("x"), Limits(requests=1))
    assert not workers()


def test_a_generator_that_dies_is_told(server: FakeServer) -> None:
    with (
        afterwards(server, 0.1, lambda: workers()[0].kill()),
        pytest.raises(HfxError, match="process ended with code -9"),
    ):
        measured(server.url, CLASSIFIER, Closed(1), asks("sleep 0.01"), Limits(seconds=30))
