"""The server's side of a measurement: strictly parsed metrics, Triton's counts as steps, processes, the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hfx.errors import ServerUnreachable
from hfx.perf.loadgen.log import Target
from hfx.perf.machine import joined_gpus, local_gpus, machine
from hfx.perf.results import Gpu
from hfx.perf.server import located, metrics
from hfx.perf.server.metrics import with_engine
from hfx.perf.server.statistics import Counts, Statistics, steps
from hfx.perf.server.watching import Usage, busy_cores, listening, usage

# As Triton 2.51 and a generator's engine write them.
METRICS = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="stories",version="1"} 10
nv_inference_request_success{model="sentiment",version="1"} 3
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="stories",reason="OTHER",version="1"} 0
nv_inference_request_failure{model="stories",reason="REJECTED",version="1"} 1
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="stories",version="1"} 4
# TYPE hfx_step_seconds_total counter
hfx_step_seconds_total{model="stories"} 0.25
# TYPE hfx_inter_token_seconds_bucket counter
hfx_inter_token_seconds_bucket{le="+Inf",model="stories"} 90
"""


def grown(**values: float) -> str:
    """Return METRICS with other values."""
    lines = METRICS.splitlines()
    for words, value in values.items():
        lines = [f"{line.rpartition(' ')[0]} {value}" if words in line and line[0] != "#" else line for line in lines]
    return "\n".join(lines)


# Metrics


def test_counters_of_a_model_are_reported_as_their_growth() -> None:
    after = grown(OTHER=2, REJECTED=1, hfx_step_seconds_total=1.5, hfx_inter_token_seconds_bucket=95, pending=9)
    found = metrics.counters(metrics.parse(METRICS), metrics.parse(after), ["stories"])
    assert found == {"nv_inference_request_failure{reason=OTHER}": 2.0, "hfx_step_seconds_total": 1.25}


def test_counters_of_several_models_are_one_and_those_that_began_anew_are_left_out() -> None:
    before, after = metrics.parse(METRICS), metrics.parse(grown(hfx_step_seconds_total=0.1))
    assert metrics.counters((), before, ["stories", "sentiment"])["nv_inference_request_success"] == 13
    assert metrics.counters(before, after, ["stories"]) == {}


def test_labels_may_hold_what_looks_like_their_end() -> None:
    [sample] = metrics.parse('# TYPE up counter\nup{a="} 1",b="say \\"hi\\", \\\\o/\\n"} 2 1700000000')
    assert (sample.name, sample.labels, sample.value) == ("up", {"a": "} 1", "b": 'say "hi", \\o/\n'}, 2.0)


@pytest.mark.parametrize("line", ["<html>", "up", 'up{a="1"', "up one", "{} 1"])
def test_text_that_is_no_metrics_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the parser's
        metrics.parse(f"up 1\n{line}\n")


def test_the_gpus_that_triton_tells_of_are_known_by_their_ids() -> None:
    text = 'nv_gpu_utilization{gpu_uuid="GPU-7"} 0.5\nnv_gpu_memory_used_bytes{gpu_uuid="GPU-7"} 4096\n'
    assert metrics.gpus(metrics.parse(text)) == (Gpu("GPU-7", 0.5, 4096),)
    assert metrics.gpus(metrics.parse(METRICS)) == ()


# Triton's statistics


def test_a_step_has_averages_a_request_and_rows_a_batch() -> None:
    before = {"net": Counts(requests=10, rows=10, executions=10, infer=10_000_000)}
    after = {"net": Counts(requests=14, rows=18, executions=12, queue=8_000_000, infer=30_000_000), "other": Counts()}
    [step] = steps(before, after, ["tokenize", "net", "other"])
    assert (step.model, step.requests, step.executions, step.batch) == ("net", 8, 2, 4.0)
    assert (step.queue, step.infer, step.output) == (2.0, 5.0, 0.0)
    # A model that was loaded anew.
    assert steps({"net": Counts(requests=10)}, {"net": Counts(requests=2, executions=1)}, ["net"]) == ()


def test_the_steps_of_an_engine_replace_those_of_its_relay() -> None:
    told = {
        "hfx_generated_tokens_total": 80.0,
        "hfx_steps_total": 20.0,
        "hfx_time_to_first_token_seconds_sum": 0.4,
        "hfx_time_to_first_token_seconds_count": 4.0,
        "hfx_inter_token_seconds_sum": 2.0,
    }
    done = Counts(requests=4, rows=4, executions=4)
    counts = {"stories": done + Counts(infer=9000), "stories_stream": done + Counts(infer=1000)}
    handed = steps({}, counts, list(counts))
    [engine] = with_engine(handed, told, "stories")
    assert (engine.model, engine.requests, engine.executions, engine.batch) == ("stories_stream", 80, 20, 4.0)
    assert (engine.input, engine.infer) == (100.0, 500.0)
    assert with_engine(handed, {}, "stories") == handed


# Processes

SERVER = """
import socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(listener.getsockname()[1], child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


def test_a_server_is_found_by_its_port_and_its_children_count() -> None:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stdin
        port, child = map(int, server.stdout.readline().split())
        assert listening(port) == (server.pid, [port])
        looks = [usage(server.pid)]
        time.sleep(0.5)
        looks.append(usage(server.pid))
        before, now = (look for look in looks if look is not None)
        assert set(now.seconds) == {server.pid, child} and now.memory > 1 << 20
        cores = busy_cores([before, now])
        assert cores is not None and 0.05 < cores < 1.5  # other work may be under way
        assert busy_cores([now]) is None
        server.stdin.close()
    assert usage(server.pid) is None


def test_a_process_that_ends_keeps_what_it_had_taken() -> None:
    looks = [Usage(1.0, {1: 5.0, 2: 1.0}, 0), Usage(2.0, {1: 5.5, 2: 1.5, 3: 0.5}, 0), Usage(3.0, {1: 6.0}, 0)]
    assert busy_cores(looks) == pytest.approx((1.0 + 0.5 + 0.5) / 2)


def test_cpu_use_below_the_clock_resolution_is_unknown_not_zero() -> None:
    assert busy_cores([Usage(1.0, {1: 5.0}, 0), Usage(1.01, {1: 5.0}, 0)]) is None
    assert busy_cores([Usage(1.0, {1: 5.0}, 0), Usage(1.1, {1: 5.01}, 0)]) is None
    assert busy_cores([Usage(1.0, {1: 5.0}, 0), Usage(11.0, {1: 5.5}, 0)]) == pytest.approx(0.05)


def test_a_listener_that_is_not_triton_has_no_metrics_and_no_statistics() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        found = located(Target("any", url))
    assert (found.metrics_url, found.pid) == ("", os.getpid())
    gone = located(Target("any", url))
    assert (gone.metrics_url, gone.pid) == ("", None)
    with pytest.raises(ServerUnreachable, match="is not answered"):
        metrics.read(f"http://{url}/metrics")
    with Statistics(url) as statistics, pytest.raises(ServerUnreachable, match="statistics"):
        statistics.snapshot()


@pytest.mark.parametrize(("text", "is_found"), [(METRICS, True), ("other_metrics 1\n", False)])
def test_metrics_two_ports_above_http_are_taken_where_they_are_triton_s(text: str, is_found: bool) -> None:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        found = located(Target("any", "127.0.0.1:1", f"http://127.0.0.1:{port - 2}"))
        server.shutdown()
    assert found.metrics_url == (f"http://127.0.0.1:{port}/metrics" if is_found else "")


# The machine


def test_readings_of_a_gpu_become_mean_utilization_and_peak_memory() -> None:
    looks = [(Gpu("a", 0.2, 5), Gpu("b")), (), (Gpu("a", 0.6, 3), Gpu("b"))]
    assert joined_gpus(looks) == (Gpu("a", 0.4, 5), Gpu("b", None, None))
    assert joined_gpus([]) == ()


SMI = r"echo 'NVIDIA H200, 37, 1024\nNVIDIA A100, MIG, [N/A], [N/A]\nTesla, [Not Supported], 12'"


@pytest.mark.parametrize(
    ("script", "expected"),
    [(SMI, (Gpu("NVIDIA H200", 0.37, 1024 << 20), Gpu("Tesla", None, 12 << 20))), ("exit 9", ()), (None, ())],
    ids=["what is known", "a failure", "no nvidia-smi"],
)
def test_gpus_are_those_of_the_machine_s_own_nvidia_smi(
    script: str | None, expected: tuple[Gpu, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert local_gpus() == expected


def test_the_machine_is_the_one_that_the_system_describes() -> None:
    found = machine()
    assert found.cores == len(os.sched_getaffinity(0)) and found.processor
    assert found.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.versions["numpy"]
