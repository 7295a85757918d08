"""Other load tools: their records as a Run, their input, and processes that are never left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from hfx.errors import HfxError, UsageError
from hfx.metadata import ModelMetadata, TensorMetadata
from hfx.perf.load import Closed, LoadLimits, Open, Plan, Request, RequestSet, Slo
from hfx.perf.loadgen.log import AnswerPart, LoadRun, RequestRecord, Watch
from hfx.perf.loadgen.stats import run_of
from hfx.perf.measuring import MeasureSpec, Target
from hfx.perf.results import Run, Subject
from hfx.perf.tools import locust, perf_analyzer
from hfx.perf.tools.perf_analyzer import NEVER, read_record, write_inputs, write_times
from hfx.perf.tools.process import ToolProcess, callers_of, due_times, failure, follow, log_of, ordered, split

RECORDED = Path(__file__).parent / "recorded"
TRACE = (0.0, 0.05, 0.06, 0.2, 0.2, 0.5)  # the send times of perf_analyzer_open.json
ORPHAN = """
import os, sys
from pathlib import Path
from hfx.perf.tools.process import ToolProcess
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
with ToolProcess([sys.executable, "-c", SLEEPER], Path(sys.argv[1])) as tool:
    while not tool.text.strip():
        pass
    os.kill(os.getpid(), 9)
"""


def load_run(
    plan: Plan, limits: LoadLimits, *arguments: str, stream: bool = False, watch: Watch = lambda progress: None
) -> LoadRun:
    spec = MeasureSpec(RequestSet((), ""), limits, stream=stream, arguments=arguments)
    text, tokens = TensorMetadata("text_input", "BYTES", (1,)), TensorMetadata("output_tokens", "INT32", (1,))
    model = ModelMetadata("a", (text,), (tokens,) if stream else ())
    return LoadRun(Target("a", ""), plan, spec, model, watch, threading.Event())


def run(rows: list[RequestRecord], plan: Plan, limits: LoadLimits, *, stream: bool = False, slo: str = "") -> Run:
    log = log_of(rows, load_run(plan, limits, stream=stream), read)
    return run_of(log, Subject("a", "a", "locust"), plan.load("", ""), plan, Slo.parse(slo) if slo else None)


def read(message: Any) -> AnswerPart:
    return AnswerPart.of(message) if isinstance(message, dict) else AnswerPart(*message)


# What counts


def test_throughput_of_two_callers_is_two_requests_a_latency() -> None:
    times = [at for step in range(10) for at in (step / 10, step / 10 + 0.05)]
    callers = callers_of([(at, at + 0.1) for at in times], 2)
    rows = [RequestRecord(0, at, caller, at, at + 0.1) for at, caller in zip(times, callers, strict=True)]
    assert run(rows, Closed(2), LoadLimits(requests=20)).throughput == pytest.approx(20.0)
    assert callers == [0, 1] * 10


def test_only_the_ordered_requests_behind_the_warm_up_count() -> None:
    times = [at / 10 for at in range(50)]
    assert split(times, LoadLimits(requests=3, warmup_requests=5))[1] == [0.5, 0.6, 0.7]
    assert split(times, LoadLimits(seconds=0.25, warmup_seconds=1.0))[1] == [1.0, 1.1, 1.2]
    rows = [RequestRecord(0, at, 0, at, at + 0.05) for at in times]
    with pytest.raises(HfxError, match="after the warm-up"):
        run(rows, Closed(1), LoadLimits(requests=1, warmup_requests=50))


def test_an_open_load_is_due_as_the_built_in_generator_sends_it() -> None:
    plan = Open(10.0, "poisson", seed=3)
    assert due_times(plan, LoadLimits(requests=20, warmup_requests=5)) == tuple(plan.times(25))
    assert due_times(Open(10.0), LoadLimits(seconds=1.0, warmup_seconds=0.5)) == tuple(n / 10 for n in range(15))
    burst = due_times(Open(arrivals="burst"), LoadLimits(requests=3, warmup_requests=2))
    assert burst == (0.0, 0.25, 0.5, 0.5, 0.5)


# perf_analyzer


def test_latencies_of_a_closed_load_are_those_of_the_record() -> None:
    path = RECORDED / "perf_analyzer_closed.json"
    found = run(read_record(path, Closed(2)), Closed(2), LoadLimits(requests=24))
    [experiment] = json.loads(path.read_text())["experiments"]
    raw = sorted((each["response_timestamps"][0] - each["timestamp"]) / 1e6 for each in experiment["requests"])
    assert found.requests.sent == found.requests.succeeded == 24 and found.latency is not None
    assert (found.latency.p50, found.latency.max) == pytest.approx((raw[11], raw[-1]), rel=2e-3)  # three digits
    assert found.ttft is None and found.tokens is None


def test_tokens_and_their_times_come_from_a_stream() -> None:
    rows = read_record(RECORDED / "perf_analyzer_stream.json", Closed(2))
    found = run(rows, Closed(2), LoadLimits(requests=20), stream=True, slo="ttft<1s,latency<1s")
    assert found.tokens is not None and found.tokens.written == sum(found.tokens.each)
    assert set(found.tokens.each) == {5, 8} and found.goodput == 1.0
    assert found.ttft is not None and found.latency is not None and found.ttft.p50 <= found.latency.p50
    assert found.tpot is not None and found.gaps is not None and found.tokens_per_second is not None


def test_requests_of_an_open_load_count_from_when_they_were_due() -> None:
    rows = read_record(RECORDED / "perf_analyzer_open.json", Open(arrivals="trace", trace=TRACE), TRACE)
    assert [each.due - rows[0].due for each in rows] == pytest.approx(TRACE, abs=1e-6)
    late = [each.sent - each.due for each in rows]
    assert min(late) == pytest.approx(0, abs=1e-6) and max(late) < 0.05


def test_a_stalled_sender_makes_requests_late_not_fast(tmp_path: Path) -> None:
    requests = [
        {"timestamp": round(at * 1e9), "response_timestamps": [round((at + 0.01) * 1e9)], "response_outputs": [{}]}
        for at in (1.0, 1.1, 1.5)  # the last two were due at 1.1 and 1.2
    ]
    (tmp_path / "record.json").write_text(json.dumps({"experiments": [{"requests": requests}]}))
    found = run(read_record(tmp_path / "record.json", Open(10.0), (0.0, 0.1, 0.2)), Open(10.0), LoadLimits(requests=3))
    assert found.latency is not None and found.latency.max == pytest.approx(310, rel=2e-3)


def test_a_float_that_json_lacks_does_not_spoil_a_record_but_damage_does(tmp_path: Path) -> None:
    text, name = (RECORDED / "perf_analyzer_stream.json").read_text(), '"output_log_probs":'
    begin = text.index(name) + len(name)
    end = min(text.index(",", begin), text.index("}", begin))
    (tmp_path / "record.json").write_text(text[:begin] + text[end:])
    assert len(read_record(tmp_path / "record.json", Closed(2))) == 20
    (tmp_path / "record.json").write_text('{"experiments":[')
    with pytest.raises(HfxError, match="can't be read"):
        read_record(tmp_path / "record.json", Closed(2))


def test_perf_analyzer_gets_pauses_and_tensors_with_shapes(tmp_path: Path) -> None:
    write_times(TRACE, tmp_path / "pauses")
    pauses = [int(line) for line in (tmp_path / "pauses").read_text().splitlines()]
    assert pauses == [1000, 50_000, 10_000, 140_000, 0, 300_000, NEVER * 1e6]  # the last one: it would begin anew
    requests = [Request({"text_input": ("é",), "stop_words": ("a", "b")}), Request({"seed": (1,)})]
    write_inputs(requests, tmp_path / "inputs")
    first, second = json.loads((tmp_path / "inputs").read_text())["data"]
    assert first["stop_words"] == {"content": ["a", "b"], "shape": [2]}
    assert second == {"seed": {"content": [1], "shape": [1]}}


def test_the_reason_of_a_failure_is_one_line() -> None:
    found = failure("perf_analyzer", (RECORDED / "perf_analyzer_failure.txt").read_text())
    assert found.message.endswith(": max_tokens is -8; allowed: a whole number of at least 1")
    for text in ("perf_analyzer: unrecognized option '--no'\nUsage:", "locust: error: unrecognized arguments: --no"):
        refused = failure("tool", text)
        assert isinstance(refused, UsageError) and "--no" in refused.message


# locust


def test_records_of_locust_are_read_to_the_last_whole_line(tmp_path: Path) -> None:
    text = (RECORDED / "locust_stream.jsonl").read_text()
    (tmp_path / "records").write_text(text + '{"due": 1')
    rows = locust.read_records(tmp_path / "records")
    assert len(rows) == 30
    found = run(rows, Closed(4), LoadLimits(requests=20, warmup_requests=8), stream=True)
    assert found.requests.succeeded == 20 and found.tokens is not None and set(found.tokens.each) == {5, 8}
    assert found.ttft is not None and found.tpot is not None


def test_errors_of_locust_are_counted_by_kind() -> None:
    found = run(locust.read_records(RECORDED / "locust_failed.jsonl"), Closed(4), LoadLimits(requests=2), stream=True)
    assert found.requests.errors == {"RequestRefused": 2} and found.latency is None
    assert "max_tokens is -8" in found.requests.words["RequestRefused"]


# Processes


@pytest.mark.parametrize(
    ("own", "flag"),
    [(perf_analyzer.OWN, flag) for flag in ("--concurrency-range", "-m", "-p=3", "--streaming")]
    + [(locust.OWN, flag) for flag in ("--users=3", "-t", "--host", "--headless")],
)
def test_flags_that_hfx_sets_are_refused(own: frozenset[str], flag: str) -> None:
    with pytest.raises(UsageError, match="is set by hfx"):
        ordered(load_run(Closed(1), LoadLimits(), "--max-threads", "8", flag), own)
    ordered(load_run(Closed(1), LoadLimits(), "--max-threads", "8", "--csv", "x"), own)


def test_leaving_the_block_ends_the_tools_process(tmp_path: Path) -> None:
    program = "import time; sum(range(3000000)); print('up', flush=True); time.sleep(60)"
    with ToolProcess([sys.executable, "-c", program], tmp_path / "o") as tool:
        while not tool.text:
            time.sleep(0.01)
        assert tool.alive and tool.text == "up\n" and tool.processor_seconds > 0
    assert not tool.alive and tool.processor_seconds == 0
    tool.interrupt(1.0)  # of a process that has ended: no error


@pytest.mark.parametrize(
    ("plan", "limits", "answers", "phase"),
    [
        (Closed(2), LoadLimits(requests=5, warmup_requests=3), 3 + 5 + 2, "counted"),  # two are under way at the end
        (Open(10.0), LoadLimits(requests=4), 4, "counted"),
        (Closed(1), LoadLimits(seconds=0.5), 2, "counted"),
        (Closed(1), LoadLimits(requests=50, warmup_seconds=90, timeout=0.5), 2, "warmup"),  # it gets stuck
    ],
)
def test_a_tool_is_followed_until_all_is_answered_or_nothing_comes(
    plan: Plan, limits: LoadLimits, answers: int, phase: str, tmp_path: Path
) -> None:
    counts, phases = iter(range(answers)), list[str]()
    with ToolProcess([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "o") as tool:
        times = plan.times(limits.requests) if isinstance(plan, Open) else ()
        load = load_run(plan, limits, watch=lambda progress: phases.append(progress.phase))
        follow(tool, lambda: next(counts, answers), load, [*times])
        assert tool.alive
    assert phases[-1] == phase and next(counts, None) is None


def test_a_process_starts_while_other_threads_use_grpc(tmp_path: Path) -> None:
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            with grpc.insecure_channel("127.0.0.1:1") as channel, suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(channel).result(timeout=0.05)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            threads.submit(connect)
        try:
            for _ in range(40):  # of a hundred children whose start ran gRPC's fork handlers, 7 ended
                with ToolProcess((sys.executable, "-S", "-c", "print('started')"), tmp_path / "output.txt") as process:
                    while process.alive:
                        time.sleep(0.01)
                assert process.text == "started\n"
        finally:
            stop.set()


def test_the_process_does_not_outlive_a_starter_that_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "o"
    subprocess.run([sys.executable, "-c", ORPHAN, str(output)], check=False, timeout=60)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(output.read_text())).wait(10)
    assert not psutil.pid_exists(int(output.read_text()))


LATE = """
import time, types
import gevent
from hfx.perf import locustfile
loop, end = gevent.get_hub().loop, time.perf_counter() + 0.5
while time.perf_counter() < end: pass
before = time.time() - loop.now()
locustfile.choose(types.SimpleNamespace(parsed_options=None))
print(before > 0.4, time.time() - loop.now() < 0.2)
"""


def test_locusts_timer_of_its_run_time_does_not_count_the_imports() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
