"""`hfx perf run` on a real Triton measures what the server counted, and Ctrl-C leaves the server intact."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hfx.perf.measuring import Target, device_of, server_target
from hfx.perf.results import Run, Step, read_result
from hfx.perf.server import located
from hfx.triton import EmbeddedServer
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.perf_server import CLASSIFIER, GENERATOR, Ended
from tests.rigs.servers.serve_process import HFX

pytestmark = pytest.mark.triton

Measure = Callable[..., tuple[Run, ...]]
CORES = (os.cpu_count() or 1) + 0.5


@pytest.fixture
def measured(perf_server: EmbeddedServer, hfx: Callable[..., Ended], tmp_path: Path) -> Measure:
    """A function that returns the runs of `hfx perf run NAME …`, without a warm-up unless requested."""

    def measure(name: str, *words: str) -> tuple[Run, ...]:
        path, warmup = tmp_path / "result.json", () if "--warmup" in words else ("--warmup", "0")
        ended = hfx("perf", "run", name, "--url", perf_server.grpc_url, "--output", str(path), *warmup, *words)
        assert ended.returncode == 0, ended.stderr
        for heading in ("requests/s", "p99", "queue ms", "server cores", name):
            assert heading in ended.stdout
        return read_result(path).runs

    return measure


def steps_of(run: Run) -> Mapping[str, Step]:
    assert run.server is not None
    return {step.model: step for step in run.server.steps}


def test_each_step_of_a_classifier_counts_the_requests_that_were_sent(measured: Measure, perf_models: Path) -> None:
    words = ("--concurrency", "1,8", "--requests", "1000", "--repository", str(perf_models))
    # Of fewer, the server may take too little to count its cores by.
    alone, together = measured(CLASSIFIER, *words)
    for run in (alone, together):
        assert (run.requests.sent, run.requests.succeeded) == (1000, 1000)
        assert run.latency is not None and run.latency.count == 1000
        steps = steps_of(run)
        assert list(steps) == [CLASSIFIER]  # as one native model
        assert [step.requests for step in steps.values()] == [1000]
        assert all(step.batch == step.requests / step.executions and step.infer > 0 for step in steps.values())
        # The rest is the ensemble, gRPC and the way, most of it on a busy machine; a wrong unit is off by 1,000.
        # Triton's "output" goes on after the answer has left.
        inside = sum(step.queue + step.input + step.infer for step in steps.values())
        assert 0.005 * run.latency.mean < inside < 1.1 * run.latency.mean
        assert run.server and run.server.counters["nv_inference_request_success"] == 1000
        assert run.server.cores is not None and 0 < run.server.cores < CORES
        assert run.server.memory is not None and run.server.memory > 100 << 20  # tritonserver and its Python processes
        assert run.client is not None and run.client.cores > 0
    assert steps_of(alone)[CLASSIFIER].batch == 1 < steps_of(together)[CLASSIFIER].batch
    subject = alone.subject
    assert (subject.task, subject.device, subject.precision) == ("text-classification", "cpu", "int8")


def test_a_generator_s_stream_has_times_of_its_tokens(measured: Measure) -> None:
    words = ("--concurrency", "4", "--requests", "24", "--set", "max_tokens=16", "--slo", "ttft<60s,tpot<60s")
    [run] = measured(GENERATOR, *words)
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
def test_a_generator_s_plain_calls_go_through_the_relay(measured: Measure) -> None:
    [run] = measured(GENERATOR, "--no-stream", "--requests", "10", "--set", "max_tokens=8")
    assert (run.subject.protocol, run.ttft) == ("grpc", None)
    assert run.tokens is not None and run.tokens.written > 0
    assert {name: step.requests for name, step in steps_of(run).items()} == {f"{GENERATOR}_stream": run.tokens.written}
    assert run.server and run.server.counters["nv_inference_request_success"] == 10


@pytest.mark.full
def test_cpu_use_of_a_burst_covers_first_request_to_last_answer(measured: Measure) -> None:
    words = ("--arrivals", "burst", "--requests", "64", "--set", "max_tokens=64", "--no-stream")
    [run] = measured(GENERATOR, *words)
    assert run.server is not None and run.server.cores is not None and 0 < run.server.cores < CORES


@pytest.mark.full
def test_the_warm_up_is_left_out_of_counts_and_of_server_statistics(measured: Measure) -> None:
    [run] = measured(CLASSIFIER, "--concurrency", "4", "--requests", "300", "--warmup", "100")
    assert run.requests.sent == 300
    rows = steps_of(run)[CLASSIFIER].requests
    assert 200 <= rows <= 320  # the look at the server takes some milliseconds of a load that goes on


@pytest.mark.full
def test_the_metrics_and_process_of_a_server_are_found_by_its_grpc_address(perf_server: EmbeddedServer) -> None:
    found = located(Target(CLASSIFIER, perf_server.grpc_url))
    assert (found.metrics_url, found.pid) == (perf_server.metrics_url, perf_server.pid)
    assert {device_of(server_target(perf_server, name)) for name in (CLASSIFIER, GENERATOR)} == {"cpu"}


def test_ctrl_c_keeps_what_was_measured(perf_server: EmbeddedServer, tmp_path: Path) -> None:
    def answered() -> int:
        return int(perf_server.statistics()[CLASSIFIER]["inference_count"])

    path, before = tmp_path / "result.json", answered()
    words = ["perf", "run", CLASSIFIER, "--url", perf_server.grpc_url, "--duration", "90s", "--output", str(path)]
    with subprocess.Popen(
        [*HFX, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        wait_until(lambda: answered() >= before + 50, "50 answers")
        time.sleep(1.5)  # past the warm-up
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: all of its processes get it
        printed, said = running.communicate(timeout=30)
    assert running.returncode == 130, said
    [run] = read_result(path).runs
    assert run.interrupted and run.requests.succeeded > 0 and not run.requests.errors
    assert "interrupted: " in printed
    assert "Error: Interrupted." in said and "Traceback" not in said
