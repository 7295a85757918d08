"""perf_analyzer and locust on a real Triton: every plan, early ends, failures; locust by itself, with its page."""

from __future__ import annotations

import csv
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hfx.errors import FetchFailed, LoadFailed, UsageError
from hfx.perf.builtin import Generated, Progress
from hfx.perf.load import Closed, Limits, Open, Plan, Request, RequestSet
from hfx.perf.measuring import MeasureSpec, server_target
from hfx.perf.tools.install import fetch
from hfx.perf.tools.locust import LOCUSTFILE, run_locust
from hfx.perf.tools.perf_analyzer import run_perf_analyzer
from hfx.triton import EmbeddedServer
from tests.triton.perf_rig import CLASSIFIER, GENERATOR

pytestmark = pytest.mark.triton

TEXTS = RequestSet(
    (Request({"text_input": ("A lovely garden",), "top_k": (2,)}), Request({"text_input": ("Awful",)})), "two texts"
)
STORIES = RequestSet(
    (
        Request({"text_input": ("Anna was",), "max_tokens": (8,)}),
        Request(
            {"text_input": ("Once",), "max_tokens": (4,), "do_sample": (True,), "seed": (1,), "stop_words": ("x", "y")}
        ),
    ),
    "two beginnings",
)
TRACE = (0.0, 0.1, 0.1, 0.4, 0.9)
RUNS = {"perf_analyzer": run_perf_analyzer, "locust": run_locust}
PATIENCE = 60.0

Measure = Callable[..., Generated]


@pytest.fixture(params=RUNS)
def measure(
    request: pytest.FixtureRequest, perf_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Measure:
    """Each tool on the server, its reports in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    if request.param == "perf_analyzer":
        try:
            fetch()
        except FetchFailed as failure:
            pytest.skip(f"perf_analyzer can't be fetched: {failure}")

    def run(model: str, plan: Plan, asks: RequestSet, limits: Limits, **more: object) -> Generated:
        stream, arguments = bool(more.pop("stream", False)), more.pop("arguments", ())
        order = MeasureSpec(asks, limits, tool=request.param, stream=stream, arguments=arguments)  # type: ignore[arg-type]
        found: Generated = RUNS[request.param](server_target(perf_server, model), plan, order, **more)  # type: ignore[operator]
        return found

    return run


def test_so_many_requests_count_as_were_ordered(measure: Measure) -> None:
    found = measure(CLASSIFIER, Closed(4), TEXTS, Limits(requests=100, warmup_requests=20))
    assert (found.requests.sent, found.requests.succeeded, found.interrupted) == (100, 100, False)
    assert found.latency is not None and found.latency.count == 100
    assert found.throughput == pytest.approx(4000 / found.latency.mean, rel=0.4)


@pytest.mark.parametrize(
    ("plan", "limits", "count"),
    [
        (Open(40.0, "poisson", seed=2), Limits(requests=60, warmup_requests=5), 60),
        (Open(arrivals="trace", trace=TRACE), Limits(), 5),
        (Open(arrivals="burst"), Limits(requests=32, warmup_requests=2), 32),
    ],
    ids=["poisson", "trace", "burst"],
)
def test_arrivals_are_those_of_the_plan(plan: Open, limits: Limits, count: int, measure: Measure) -> None:
    found = measure(CLASSIFIER, plan, TEXTS, limits)
    assert (found.requests.sent, found.requests.succeeded) == (count, count)
    due = list(plan.times(limits.warmup_requests + count if plan.arrivals == "poisson" else count, None))
    begin = due[limits.warmup_requests] if plan.arrivals == "poisson" else due[0]
    assert due[-1] - begin <= found.seconds <= due[-1] - begin + 2.0


@pytest.mark.parametrize("stream", [False, True], ids=["plain calls", "streams"])
def test_tokens_are_counted_whatever_the_settings_of_each_request(stream: bool, measure: Measure) -> None:
    found = measure(GENERATOR, Closed(3), STORIES, Limits(requests=30), stream=stream)
    assert found.requests.succeeded == 30 and found.tokens is not None
    assert max(found.tokens.each) == 8 and set(found.tokens.each) <= set(range(1, 9))
    assert (found.ttft is not None) == (found.gaps is not None) == stream


def test_stopped_early_it_gives_what_it_has(measure: Measure) -> None:
    stop, phases = threading.Event(), []

    def watch(progress: Progress) -> None:
        phases.append(progress.phase)
        if progress.succeeded > 50:
            stop.set()

    begin = time.monotonic()
    found = measure(
        CLASSIFIER, Closed(2), TEXTS, Limits(seconds=300.0, warmup_requests=10), watch=watch, stop=stop
    )  # fmt: skip
    assert found.interrupted and found.requests.succeeded > 50 and time.monotonic() - begin < PATIENCE
    assert phases[0] == "warmup" and phases[-1] == "counted"


def test_a_request_that_the_model_can_t_take_is_refused_before_anything_is_sent(measure: Measure) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        measure(CLASSIFIER, Closed(1), RequestSet((Request({"nonsense": (1,)}),), ""), Limits(requests=5))


def test_what_the_server_refuses_is_told_in_its_own_words(measure: Measure) -> None:
    wrong = RequestSet((Request({"text_input": ("Anna",), "max_tokens": (-5,)}),), "")
    try:
        found = measure(GENERATOR, Closed(1), wrong, Limits(requests=5))
    except LoadFailed as failure:  # perf_analyzer ends with the first one
        words = failure.message
    else:
        assert found.requests.errors == {"RequestRefused": 5} and found.latency is None
        words = found.requests.words["RequestRefused"]
    assert "max_tokens is -5; allowed: a whole number of at least 1" in words


def test_a_flag_that_the_tool_does_not_know_is_the_caller_s_mistake(measure: Measure) -> None:
    with pytest.raises(UsageError, match="--nonsense"):
        measure(CLASSIFIER, Closed(1), TEXTS, Limits(requests=5), arguments=("--nonsense",))


def test_perf_analyzer_says_whether_it_became_stable(perf_server: EmbeddedServer) -> None:
    order = MeasureSpec(TEXTS, Limits(stable=200.0, window=0.5), tool="perf_analyzer", stream=False)
    assert run_perf_analyzer(server_target(perf_server, CLASSIFIER), Closed(2), order).stable is True


def test_reports_of_locust_are_kept(
    perf_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    order = MeasureSpec(TEXTS, Limits(requests=30), tool="locust", stream=False)
    found = run_locust(server_target(perf_server, CLASSIFIER), Closed(2), order)
    [note] = [note for note in found.notes if "reports" in note]
    folder = Path(note.rpartition(" ")[2])
    assert "<html" in (folder / "report.html").read_text()
    with (folder / "locust_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    assert int(rows[CLASSIFIER]["Request Count"]) >= 30 and rows[CLASSIFIER]["Failure Count"] == "0"


# locust by itself


def locust_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *words]


@pytest.mark.parametrize(
    ("protocol", "words", "names"),
    [
        ("grpc", ("--model", CLASSIFIER), {CLASSIFIER}),
        ("http", ("--model", CLASSIFIER), {CLASSIFIER}),
        ("grpc", ("--model", GENERATOR, "--stream", "--max-tokens", "6"), {GENERATOR, "first token"}),
        ("http", ("StreamingUser", "--model", GENERATOR, "--max-tokens", "6"), {GENERATOR, "first token"}),
    ],
    ids=["gRPC", "HTTP", "gRPC stream", "HTTP stream"],
)
def test_plain_locust_runs_its_users(
    protocol: str, words: tuple[str, ...], names: set[str], perf_server: EmbeddedServer, tmp_path: Path
) -> None:
    host = f"grpc://{perf_server.grpc_url}" if protocol == "grpc" else perf_server.http_url
    done = subprocess.run(
        locust_words(*words, "--headless", "-u", "2", "-r", "2", "-t", "3s", "--host", host, "--csv", "load"),
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "load_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file) if row["Name"] != "Aggregated"}
    assert set(rows) == names
    assert all(int(row["Request Count"]) > 5 and row["Failure Count"] == "0" for row in rows.values())


def test_plain_locust_reads_a_data_file_and_says_what_is_wrong_with_it(
    perf_server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("review\nA lovely garden\n")
    words = ("--headless", "-u", "1", "-t", "2s", "--host", f"grpc://{perf_server.grpc_url}", "--model", CLASSIFIER)

    def run(column: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            locust_words(*words, "--data", "data.csv", "--column", column),
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    assert run("review").returncode == 0
    wrong = run("nonsense")
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr and "Traceback" not in wrong.stderr


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def page(words: list[str], port: int) -> Iterator[str]:
    """locust with its page on PORT of this machine."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def read(url: str, data: bytes | None = None) -> str:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, data=data, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_the_page_of_locust_starts_a_load(perf_server: EmbeddedServer) -> None:
    port = free_port()
    host = f"grpc://{perf_server.grpc_url}"
    words = locust_words("--web-host", "127.0.0.1", "--web-port", str(port), "--host", host, "--model", CLASSIFIER)
    with page(words, port) as url:
        assert "<title>Locust</title>" in read(url)
        read(f"{url}/swarm", f"user_count=2&spawn_rate=2&host={host}&model={CLASSIFIER}".encode())
        end = time.monotonic() + PATIENCE
        while f'"name":"{CLASSIFIER}"' not in (stats := read(f"{url}/stats/requests").replace(" ", "")):
            assert time.monotonic() < end, stats
            time.sleep(0.2)
        assert '"num_failures":0' in stats
