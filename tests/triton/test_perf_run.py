"""`hfx perf run` on a real Triton: what it measures is what the server counted, and it ends well whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hfx.perf.measuring import Target, device_of, server_target
from hfx.perf.results import Result, Run, Step, read_result
from hfx.perf.server import located
from hfx.triton import EmbeddedServer
from tests.triton.perf_rig import CLASSIFIER, GENERATOR, HFX, PATIENCE, Ended

pytestmark = pytest.mark.triton

Perf = Callable[..., Ended]


@pytest.fixture
def perf(perf_server: EmbeddedServer, hfx: Perf) -> Perf:
    """`hfx perf run NAME …` against the server, without a warm-up unless one is asked for."""

    def run(name: str, *words: str) -> Ended:
        warmup = () if "--warmup" in words else ("--warmup", "0")
        return hfx("perf", "run", name, "--url", perf_server.grpc_url, *warmup, *words)

    return run


def result_of(ended: Ended) -> Result:
    """The result that a run with --json printed."""
    from pydantic import TypeAdapter

    assert ended.returncode == 0, ended.stderr
    return TypeAdapter(Result).validate_json(ended.stdout)


def steps_of(run: Run) -> Mapping[str, Step]:
    assert run.server is not None
    return {step.model: step for step in run.server.steps}


# What is measured


def test_each_step_of_a_classifier_counts_the_requests_that_were_sent(perf: Perf) -> None:
    result = result_of(perf(CLASSIFIER, "--concurrency", "1,8", "--requests", "200", "--json"))
    for run in result.runs:
        assert (run.requests.sent, run.requests.succeeded) == (200, 200)
        assert run.latency is not None and run.latency.count == 200
        steps = steps_of(run)
        assert list(steps) == [f"{CLASSIFIER}_tokenize", f"{CLASSIFIER}_net", f"{CLASSIFIER}_postprocess"]
        assert [step.requests for step in steps.values()] == [200, 200, 200]
        assert all(step.batch == step.requests / step.executions and step.infer > 0 for step in steps.values())
        # The rest is the ensemble, gRPC and the way. Triton's "output" goes on after the answer has left.
        inside = sum(step.queue + step.input + step.infer for step in steps.values())
        assert 0.2 * run.latency.mean < inside < 1.1 * run.latency.mean
        assert run.server and run.server.counters["nv_inference_request_success"] == 200
        assert run.server.cores is not None and 0.1 < run.server.cores < (os.cpu_count() or 1) + 0.5
        assert run.server.memory is not None and run.server.memory > 100 << 20  # tritonserver and its Python processes
        assert run.client is not None and run.client.cores > 0
    alone, together = result.runs
    assert steps_of(alone)[f"{CLASSIFIER}_net"].batch == 1 < steps_of(together)[f"{CLASSIFIER}_net"].batch
    assert (alone.subject.task, alone.subject.device) == ("text-classification", "cpu")


@pytest.mark.full
def test_what_a_burst_uses_is_that_from_its_first_request_to_its_last_answer(perf: Perf) -> None:
    words = ("--arrivals", "burst", "--requests", "64", "--set", "max_tokens=64", "--no-stream", "--json")
    [run] = result_of(perf(GENERATOR, *words)).runs
    assert run.server is not None and run.server.cores is not None
    assert 0.1 < run.server.cores < (os.cpu_count() or 1) + 0.5


@pytest.mark.full
def test_an_open_load_keeps_its_rate(perf: Perf) -> None:
    [run] = result_of(perf(CLASSIFIER, "--rate", "50", "--arrivals", "poisson", "--requests", "100", "--json")).runs
    assert (run.load.kind, run.load.rate, run.load.arrivals) == ("open", 50.0, "poisson")
    assert run.requests.succeeded == 100 and 1 < run.seconds < 4
    assert [step.requests for step in steps_of(run).values()] == [100, 100, 100]


@pytest.mark.full
def test_a_warm_up_does_not_count_here_and_hardly_at_the_server(perf: Perf) -> None:
    [run] = result_of(perf(CLASSIFIER, "--concurrency", "4", "--requests", "300", "--warmup", "100", "--json")).runs
    assert run.requests.sent == 300
    rows = steps_of(run)[f"{CLASSIFIER}_net"].requests
    assert 200 <= rows <= 320  # the look at the server takes some milliseconds of a load that goes on


def test_a_generator_s_stream_has_times_of_its_tokens(perf: Perf) -> None:
    words = ("--concurrency", "4", "--requests", "24", "--set", "max_tokens=16", "--slo", "ttft<60s,tpot<60s", "--json")
    [run] = result_of(perf(GENERATOR, *words)).runs
    assert (run.subject.protocol, run.subject.task) == ("grpc-stream", "text-generation")
    assert run.tokens is not None and run.tokens_per_second is not None
    assert 24 <= run.tokens.written <= 24 * 16 and run.tokens.read > 0
    assert run.ttft is not None and run.tpot is not None and run.latency is not None
    assert run.ttft.count == 24 and 0 < run.ttft.p50 <= run.latency.p50
    assert run.goodput == 1.0
    engine = steps_of(run)[f"{GENERATOR}_stream"]
    assert engine.requests == run.tokens.written  # the engine counted the same tokens
    assert 1 < engine.batch <= 4
    assert run.server and run.server.counters["hfx_requests_completed_total"] == 24


@pytest.mark.full
def test_a_generator_s_plain_calls_go_through_the_relay(perf: Perf) -> None:
    [run] = result_of(perf(GENERATOR, "--no-stream", "--requests", "10", "--set", "max_tokens=8", "--json")).runs
    assert (run.subject.protocol, run.ttft) == ("grpc", None)
    assert run.tokens is not None and run.tokens.written > 0
    assert {name: step.requests for name, step in steps_of(run).items()} == {f"{GENERATOR}_stream": run.tokens.written}
    assert run.server and run.server.counters["nv_inference_request_success"] == 10


@pytest.mark.full
def test_rows_of_a_file_have_settings_of_their_own(perf: Perf, tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("prompt,max_tokens\nAnna was,4\nTom had a,6\n")
    [run] = result_of(perf(GENERATOR, "--data", str(path), "--column", "prompt", "--requests", "2", "--json")).runs
    assert run.tokens is not None and run.tokens.written <= 10
    assert "prompts.csv" in run.load.data


@pytest.mark.full
def test_people_get_tables(perf: Perf, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    ended = perf(CLASSIFIER, "--concurrency", "2", "--requests", "50", "--output", str(path))
    assert ended.returncode == 0, ended.stderr
    assert read_result(path).runs[0].requests.succeeded == 50
    for words in ("requests/s", "p99", "2 callers", f"{CLASSIFIER}_net", "queue ms", "server cores"):
        assert words in ended.stdout, ended.stdout


@pytest.mark.full
def test_from_its_grpc_address_all_of_a_server_is_found(perf_server: EmbeddedServer) -> None:
    found = located(Target(CLASSIFIER, perf_server.grpc_url))
    whole = (perf_server.http_url, perf_server.metrics_url, perf_server.pid)
    assert (found.http_url, found.metrics_url, found.pid) == whole
    assert (
        device_of(server_target(perf_server, CLASSIFIER)) == device_of(server_target(perf_server, GENERATOR)) == "cpu"
    )


@pytest.mark.full
def test_with_its_repository_a_model_has_a_precision(perf_models: Path, hfx: Perf, perf_server: EmbeddedServer) -> None:
    words = ("--requests", "20", "--warmup", "0", "--repository", str(perf_models), "--json")
    [run] = result_of(hfx("perf", "run", CLASSIFIER, "--url", perf_server.grpc_url, *words)).runs
    assert run.subject.precision == "int8"


# Ends


def test_ctrl_c_keeps_what_was_measured(perf_server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["perf", "run", CLASSIFIER, "--url", perf_server.grpc_url, "--duration", "90s", "--output", str(path)]
    with subprocess.Popen(
        [*HFX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        wait_until_asked(perf_server, CLASSIFIER, 50)
        time.sleep(1.5)  # past the warm-up
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: all of its processes get it
        printed, said = running.communicate(timeout=30)
    assert running.returncode == 130, said
    [run] = read_result(path).runs
    assert run.interrupted and run.requests.succeeded > 0 and not run.requests.errors
    assert "interrupted: figures are of what was done until then" in printed
    assert "Error: Interrupted." in said and "Traceback" not in said


@pytest.mark.full
def test_a_server_that_dies_leaves_a_partial_result_that_says_so(perf_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with EmbeddedServer(perf_models, models=[CLASSIFIER]) as server:
        words = ["perf", "run", CLASSIFIER, "--url", server.grpc_url, "--warmup", "0", "--duration", "60s"]
        words += ["--output", str(path)]
        with subprocess.Popen([*HFX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            wait_until_asked(server, CLASSIFIER, 100)
            server.kill()
            printed, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 5, said
    [run] = read_result(path).runs
    assert run.requests.succeeded >= 100 and "ServerUnreachable" in run.requests.errors
    assert "requests failed" in printed and "The server was gone" in printed
    assert "Error: The server was gone" in said and "Interrupted" not in said
    assert "Traceback" not in said + printed


@pytest.mark.full
def test_a_server_that_is_gone_before_the_next_load_leaves_the_loads_before(perf_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with EmbeddedServer(perf_models, models=[CLASSIFIER]) as server:
        words = ["perf", "run", CLASSIFIER, "--url", server.grpc_url, "--warmup", "0", "--requests", "100"]
        words += ["--concurrency", "1,2,3,4,5,6,7,8,9,10,11,12", "--output", str(path)]
        with subprocess.Popen([*HFX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            wait_until_asked(server, CLASSIFIER, 150)
            server.kill()
            printed, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 5, said
    result = read_result(path)
    assert result.runs[0].requests.succeeded == 100
    assert any("not run" in note for note in result.notes) and "not run: " in printed


# Wrong use


def test_wrong_use_says_what_there_is(perf: Perf, tmp_path: Path) -> None:
    unknown = perf("sentimental")
    assert unknown.returncode == 5 and f"It serves: {CLASSIFIER}, {GENERATOR}." in unknown.stderr
    member = perf(f"{CLASSIFIER}_net")
    assert member.returncode == 2 and "takes no text" in member.stderr
    streamed = perf(CLASSIFIER, "--stream")
    assert streamed.returncode == 2 and "can't be streamed" in streamed.stderr
    (tmp_path / "data.csv").write_text("review,label\nfine,1\n")
    column = perf(CLASSIFIER, "--data", str(tmp_path / "data.csv"))
    assert column.returncode == 2 and "its columns are review, label" in column.stderr
    for ended in (unknown, member, streamed, column):
        assert ended.stdout == "" and ended.stderr.startswith("Error: "), ended.stderr


def wait_until_asked(server: EmbeddedServer, model: str, count: int) -> None:
    """Wait until the server has answered so many more requests."""
    before = answered(server, model)
    deadline = time.monotonic() + PATIENCE
    while answered(server, model) < before + count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answered(server: EmbeddedServer, model: str) -> int:
    return int(server.statistics()[model]["inference_count"])
