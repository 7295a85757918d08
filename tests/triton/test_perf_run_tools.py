"""`hfx perf run --tool` on a real Triton: whatever sends the requests, the result has one form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hfx.errors import HfxError
from hfx.perf.results import Run, read_result
from hfx.perf.tools.install import fetch, find
from hfx.triton import EmbeddedServer
from tests.triton.perf_rig import CLASSIFIER, GENERATOR, Ended

pytestmark = pytest.mark.triton

TOOLS = ("builtin", "perf_analyzer", "locust")
Measure = Callable[..., Run]


@pytest.fixture
def measured(perf_server: EmbeddedServer, hfx: Callable[..., Ended], tmp_path: Path) -> Measure:
    """The one run of `hfx perf run --tool TOOL NAME …`; perf_analyzer is fetched where it is not."""

    def run(tool: str, name: str, *words: str) -> Run:
        if tool == "perf_analyzer":
            _needs_perf_analyzer()
        path = tmp_path / f"{tool}.json"
        address = ("--url", perf_server.grpc_url, "--http-url", perf_server.http_url)
        ended = hfx("perf", "run", name, *address, "--tool", tool, "--output", str(path), *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        [found] = read_result(path).runs
        return found

    return run


def _needs_perf_analyzer() -> None:
    try:
        find()
    except HfxError:
        try:
            fetch()
        except HfxError as error:
            pytest.skip(f"perf_analyzer can't be fetched: {error.message}")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_puts_a_closed_load_to_a_classifier(tool: str, measured: Measure) -> None:
    run = measured(tool, CLASSIFIER, "--concurrency", "2", "--duration", "3s")
    assert (run.subject.tool, run.subject.model, run.subject.protocol) == (tool, CLASSIFIER, "grpc")
    assert (run.load.kind, run.load.concurrency) == ("closed", 2)
    assert run.requests.succeeded > 20 and not run.requests.failed
    assert run.latency is not None and 0 < run.latency.p50 <= run.latency.p99
    assert run.throughput == pytest.approx(2000 / run.latency.mean, rel=0.5)  # two callers, always one request each
    assert run.server is not None
    steps = {step.model: step for step in run.server.steps}
    assert list(steps) == [f"{CLASSIFIER}_tokenize", f"{CLASSIFIER}_net", f"{CLASSIFIER}_postprocess"]
    assert steps[f"{CLASSIFIER}_net"].requests >= 0.8 * run.requests.succeeded
    assert run.server.cores is not None and run.server.cores > 0


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_keeps_an_open_load_s_rate(tool: str, measured: Measure) -> None:
    run = measured(tool, CLASSIFIER, "--rate", "20", "--duration", "4s")
    assert (run.load.kind, run.load.rate) == ("open", 20.0)
    assert run.requests.succeeded >= 40 and not run.requests.failed
    assert run.throughput == pytest.approx(20, rel=0.25)


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_streams_a_generator_s_tokens(tool: str, measured: Measure) -> None:
    run = measured(tool, GENERATOR, "--concurrency", "2", "--duration", "3s", "--set", "max_tokens=12")
    assert (run.subject.tool, run.subject.protocol) == (tool, "grpc-stream")
    assert run.requests.succeeded > 10 and not run.requests.failed
    assert run.ttft is not None and run.latency is not None and 0 < run.ttft.p50 <= run.latency.p50
    assert run.tokens_per_second is not None and run.tokens_per_second > 0
