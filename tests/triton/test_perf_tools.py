"""perf_analyzer and locust on a real Triton: results of one format, early ends, failures; plain locust."""

from __future__ import annotations

import csv
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import FetchFailed, LoadFailed, UsageError
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Request, RequestSet
from hfx.perf.loadgen.log import Progress
from hfx.perf.measuring import MeasureSpec, measure, server_target
from hfx.perf.results import Run, read_result
from hfx.perf.tools import perf_analyzer
from hfx.perf.tools.locust import LOCUSTFILE
from hfx.perf.tools.perf_analyzer import fetch
from hfx.triton import EmbeddedServer
from tests.rigs.machine.tiers import full
from tests.rigs.servers.perf_server import CLASSIFIER, GENERATOR, PATIENCE, Ended

pytestmark = pytest.mark.triton

TEXTS = RequestSet(
    (Request({"text_input": ("A lovely garden",), "top_k": (2,)}), Request({"text_input": ("Awful",)})), "two texts"
)
STORIES = RequestSet(
    (
        Request({"text_input": ("Anna was",), "max_tokens": (8,)}),
        Request({"text_input": ("Once",), "max_tokens": (4,), "do_sample": (True,), "stop_words": ("x", "y")}),
    ),
    "two beginnings",
)
TRACE = (0.0, 0.1, 0.1, 0.4, 0.9)

Measure = Callable[..., Run]


@pytest.fixture(params=["perf_analyzer", "locust"])
def tool(request: pytest.FixtureRequest) -> str:
    if request.param == "perf_analyzer":
        try:
            fetch()
        except FetchFailed as failure:
            pytest.skip(f"perf_analyzer can't be fetched: {failure}")
    return str(request.param)


@pytest.fixture
def measured(tool: str, perf_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Each tool on the server, with its reports in a folder of the test."""
    monkeypatch.chdir(tmp_path)

    def run(
        model: str,
        plan: Plan,
        requests: RequestSet,
        limits: LoadLimits,
        *,
        arguments: tuple[str, ...] = (),
        **others: Any,
    ) -> Run:
        spec = MeasureSpec(requests, limits, tool=tool, stream=False, arguments=arguments)  # type: ignore[arg-type]
        return measure(server_target(perf_server, model), plan, spec, **others)

    return run


def stats(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of locust's table by name, as far as it has been written."""
    text = path.read_text() if path.exists() else ""
    rows = csv.DictReader(text.splitlines(keepends=True))
    return {row["Name"]: row for row in rows if row["Name"] != "Aggregated" and row["Failure Count"]}


def test_exactly_the_ordered_number_of_requests_counts(measured: Measure) -> None:
    found = measured(CLASSIFIER, Closed(4), TEXTS, LoadLimits(requests=100, warmup_requests=20))
    assert (found.requests.sent, found.requests.succeeded, found.interrupted) == (100, 100, False)
    assert found.latency is not None and found.latency.count == 100
    assert found.throughput == pytest.approx(4000 / found.latency.mean, rel=0.5)
    for note in (note for note in found.notes if "reports" in note):  # of locust
        folder = Path(note.rpartition(" ")[2])
        assert "<html" in (folder / "report.html").read_text()
        row = stats(folder / "locust_stats.csv")[CLASSIFIER]
        assert int(row["Request Count"]) >= 100 and row["Failure Count"] == "0"


@pytest.mark.parametrize("tool", ["perf_analyzer", full("locust")], indirect=True)
def test_a_command_measures_a_stream(
    tool: str, perf_server: EmbeddedServer, hfx: Callable[..., Ended], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    words = ("--url", perf_server.grpc_url, "--tool", tool, "--requests", "20", "--set", "max_tokens=12")
    ended = hfx("perf", "run", GENERATOR, *words, "--output", str(path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [run] = read_result(path).runs
    assert (run.subject.tool, run.subject.protocol, run.requests.succeeded) == (tool, "grpc-stream", 20)
    assert run.ttft is not None and run.latency is not None and 0 < run.ttft.p50 <= run.latency.p50
    assert run.tokens_per_second is not None and run.tokens_per_second > 0


# perf_analyzer as it is now and then: its first record ends too early.
CUTS_SHORT = """#!{python}
import signal, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
at = words.index("--profile-export-file") + 1
record, whole, begun = Path(words[at]), Path(words[at]).with_name("whole.json"), Path("{folder}/begun")
words[at] = str(whole)
child = subprocess.Popen(["{program}", *words])
signal.signal(signal.SIGINT, lambda *_: child.send_signal(signal.SIGINT))
code = child.wait()
data = whole.read_bytes()
record.write_bytes(data if begun.exists() else data[:100])
begun.touch()
sys.exit(code)
"""


def test_a_run_whose_record_is_cut_short_is_repeated(
    perf_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        program = fetch()
    except FetchFailed as failure:
        pytest.skip(f"perf_analyzer can't be fetched: {failure}")
    script = tmp_path / "perf_analyzer"
    script.write_text(CUTS_SHORT.format(python=sys.executable, folder=tmp_path, program=program.path))
    script.chmod(0o755)
    monkeypatch.setattr(perf_analyzer, "find", lambda: replace(program, path=script))
    spec = MeasureSpec(TEXTS, LoadLimits(requests=20), tool="perf_analyzer", stream=False)
    found = measure(server_target(perf_server, CLASSIFIER), Closed(1), spec)
    assert found.requests.succeeded == 20
    assert any("did not finish its record" in note for note in found.notes)


@pytest.mark.full
@pytest.mark.parametrize(
    ("plan", "limits", "count"),
    [
        (Open(40.0, "poisson", seed=2), LoadLimits(requests=60, warmup_requests=5), 60),
        (Open(arrivals="trace", trace=TRACE), LoadLimits(), 5),
        (Open(arrivals="burst"), LoadLimits(requests=32, warmup_requests=2), 32),
    ],
    ids=["poisson", "trace", "burst"],
)
def test_requests_arrive_at_the_planned_times(plan: Open, limits: LoadLimits, count: int, measured: Measure) -> None:
    found = measured(CLASSIFIER, plan, TEXTS, limits)
    assert (found.requests.sent, found.requests.succeeded) == (count, count)
    due = list(plan.times(limits.warmup_requests + count if plan.arrivals == "poisson" else count))
    begin = due[limits.warmup_requests] if plan.arrivals == "poisson" else due[0]
    assert due[-1] - begin <= found.seconds


@pytest.mark.full
def test_tokens_are_counted_for_requests_with_different_settings(measured: Measure) -> None:
    found = measured(GENERATOR, Closed(3), STORIES, LoadLimits(requests=30))
    assert found.requests.succeeded == 30 and found.tokens is not None
    assert max(found.tokens.each) == 8 and set(found.tokens.each) <= set(range(1, 9))
    assert (found.ttft, found.gaps) == (None, None)


@pytest.mark.full
def test_a_load_that_is_stopped_early_gives_its_results_so_far(measured: Measure) -> None:
    stop, phases = threading.Event(), []

    def watch(progress: Progress) -> None:
        phases.append(progress.phase)
        if progress.succeeded > 50:
            stop.set()

    limits = LoadLimits(seconds=300.0, warmup_requests=10)
    begin = time.monotonic()
    found = measured(CLASSIFIER, Closed(2), TEXTS, limits, watch=watch, stop=stop)
    assert found.interrupted and found.requests.succeeded > 50 and time.monotonic() - begin < PATIENCE
    assert phases[0] == "warmup" and phases[-1] == "counted"


@pytest.mark.full
def test_refused_values_inputs_and_arguments_are_named(measured: Measure) -> None:
    def refused(kind: type[Exception], message: str, model: str, name: str, value: int, *arguments: str) -> None:
        requests = RequestSet((Request({"text_input": ("Anna",), name: (value,)}),), "")
        with pytest.raises(kind, match=message):
            measured(model, Closed(1), requests, LoadLimits(requests=5), arguments=arguments)

    refused(LoadFailed, "max_tokens is -5; it must be a whole number of at least 1", GENERATOR, "max_tokens", -5)
    refused(UsageError, "nonsense", CLASSIFIER, "nonsense", 1)
    refused(UsageError, "--nonsense", CLASSIFIER, "top_k", 1, "--nonsense")


@pytest.mark.full
@pytest.mark.parametrize("tool", ["perf_analyzer"], indirect=True)
def test_perf_analyzer_says_whether_it_became_stable(measured: Measure) -> None:
    assert measured(CLASSIFIER, Closed(2), TEXTS, LoadLimits(stable=200.0, window=0.5)).stable is True


@pytest.mark.full
@pytest.mark.parametrize(
    ("protocol", "words", "names"),
    [
        ("grpc", ("--model", CLASSIFIER, "--data", "data.csv", "--column", "review"), {CLASSIFIER}),
        ("http", ("--model", CLASSIFIER), {CLASSIFIER}),
        ("http", ("StreamingUser", "--model", GENERATOR, "--max-tokens", "6"), {GENERATOR, "first token"}),
    ],
    ids=["gRPC", "HTTP", "HTTP stream"],
)
def test_the_locustfile_runs_under_plain_locust(
    protocol: str, words: tuple[str, ...], names: set[str], perf_server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("review\nA lovely garden\n")
    host = f"grpc://{perf_server.grpc_url}" if protocol == "grpc" else perf_server.http_url
    command = (sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *words, "--headless", "-u", "2", "-r", "2")
    with subprocess.Popen(
        [*command, "-t", f"{PATIENCE}s", "--host", host, "--csv", "load"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        rows: dict[str, dict[str, str]] = {}
        while set(rows) != names or any(int(row["Request Count"]) < 5 for row in rows.values()):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.5)
            rows = stats(tmp_path / "load_stats.csv")
        process.terminate()
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, printed
    assert all(row["Failure Count"] == "0" for row in rows.values())
