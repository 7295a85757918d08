"""The server's side of a measurement: strictly parsed metrics, Triton's counts as steps, processes, the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hfx.errors import ServerUnreachable
from hfx.perf.loadgen.log import Target
from hfx.perf.machine import joined_gpus, local_gpus, machine
from hfx.perf.report.tables import server_table
from hfx.perf.results import Gpu, ServerSide, read_result, write_result
from hfx.perf.server import located, metrics, watching
from hfx.perf.server.metrics import with_engine
from hfx.perf.server.statistics import Counts, Statistics, steps
from hfx.perf.server.watching import Usage, busy_cores, listening, usage
from tests.rigs.files import perf_runs
from tests.rigs.machine.waiting import wait_until

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


# As Triton 2.51 writes them on a machine with a GPU, with an engine's counters.
ON_A_GPU = """\
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{{gpu_uuid="GPU-7"}} {busy}
# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{{gpu_uuid="GPU-7"}} 85520809984.000000
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{{gpu_uuid="GPU-7"}} 2147483648.000000
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="stories",version="1"}} {steps}
# TYPE hfx_steps_total counter
hfx_steps_total{{model="stories"}} {steps}
# TYPE hfx_captured_steps_total counter
hfx_captured_steps_total{{model="stories"}} {captured}
# TYPE hfx_prompt_runs_total counter
hfx_prompt_runs_total{{model="stories",rows="32",width="8"}} {steps}
"""


def test_a_server_s_table_shows_how_busy_its_gpu_was_and_the_share_of_captured_steps(tmp_path: Path) -> None:
    before, *during = (
        metrics.parse(ON_A_GPU.format(busy=busy, steps=steps, captured=captured))
        for busy, steps, captured in ((0, 10, 0), (0.2, 20, 8), (0.6, 30, 15))
    )
    counters = metrics.counters(before, during[-1], ["stories"])
    assert counters["hfx_prompt_runs_total{rows=32,width=8}"] == 20
    side = ServerSide(gpus=joined_gpus([metrics.gpus(each) for each in during]), counters=counters)
    made = perf_runs.result(replace(perf_runs.run("gpu", 5.0, device="gpu"), server=side))
    write_result(made, tmp_path / "r.json")
    table = server_table(read_result(tmp_path / "r.json"))
    shown = dict(zip(table.columns, table.rows[0], strict=True))
    assert (shown["GPU busy"], shown["GPU memory"], shown["steps captured"]) == ("40.0 %", "2.00 GiB", "75.0 %")


def test_a_local_server_s_gpus_are_triton_s_where_there_is_no_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(watching, "GPU_SECONDS", 0.01)

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ON_A_GPU.format(busy=0.5, steps=1, captured=1).encode())

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with watching.ServerWatch(Target("any", "127.0.0.1:1", metrics_url=url, pid=os.getpid()), False) as watch:
            wait_until(lambda: bool(watch._gpus))
            side = watch.end("any", 0)
        server.shutdown()
    assert side.gpus == (Gpu("GPU-7", 0.5, 2 << 30),)


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
