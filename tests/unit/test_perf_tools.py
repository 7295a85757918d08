"""Other tools: what they recorded as a Run, what they are given, and that their process is never left behind."""

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
from hfx.perf.load import Closed, Limits, Open, Plan, Request, Slo
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord
from hfx.perf.loadgen.stats import run_of
from hfx.perf.results import Run, Subject
from hfx.perf.tools import locust, perf_analyzer
from hfx.perf.tools.perf_analyzer import NEVER, failure, read_record, write_inputs, write_times
from hfx.perf.tools.process import ToolProcess
from hfx.perf.tools.recorded import callers_of, check_arguments, counted, due_times, log_of, piece_of

RECORDED = Path(__file__).parent / "perf_recorded"
TRACE = (0.0, 0.05, 0.06, 0.2, 0.2, 0.5)  # what perf_analyzer_open.json was sent at
TRACED = Open(arrivals="trace", trace=TRACE)
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


def made(
    recorded: list[RequestRecord], plan: Plan, limits: Limits, *, stream: bool = False, slo: str = "", **others: Any
) -> Run:
    log = log_of(recorded, limits, RequestLog(stream, stream, **{"cores": 0.1} | others), read)
    return run_of(log, Subject("a", "a", "locust"), plan.load("", ""), plan, Slo.parse(slo) if slo else None)


def read(message: Any) -> Piece:
    return piece_of(message) if isinstance(message, dict) else Piece(*message)


def recorded(due: float, sent: float, end: float, caller: int = 0) -> RequestRecord:
    return RequestRecord(0, due, caller, sent, end)


def requests_of(name: str) -> list[dict[str, list[int]]]:
    [experiment] = json.loads((RECORDED / name).read_text())["experiments"]
    return experiment["requests"]  # type: ignore[no-any-return]


def test_latencies_of_a_closed_load_are_those_of_the_record() -> None:
    found = made(read_record(RECORDED / "perf_analyzer_closed.json", Closed(2)), Closed(2), Limits(requests=24))
    raw = sorted(
        each["response_timestamps"][0] - each["timestamp"]  # type: ignore[operator]
        for each in requests_of("perf_analyzer_closed.json")
    )
    assert found.requests.sent == found.requests.succeeded == 24 and found.latency is not None
    assert found.latency.max == pytest.approx(raw[-1] / 1e6, rel=2e-3)  # the histogram has three digits
    assert found.latency.p50 == pytest.approx(raw[11] / 1e6, rel=2e-3)
    assert found.ttft is None and found.tokens is None and found.client is not None and found.client.cores == 0.1


def test_throughput_of_two_callers_is_two_requests_a_latency() -> None:
    times = [at for step in range(10) for at in (step / 10, step / 10 + 0.05)]
    callers = callers_of([(at, at + 0.1) for at in times], 2)
    rows = [recorded(at, at, at + 0.1, caller) for at, caller in zip(times, callers, strict=True)]
    assert made(rows, Closed(2), Limits(requests=20)).throughput == pytest.approx(20.0)
    assert sorted(callers) == [0] * 10 + [1] * 10


def test_there_are_never_more_callers_than_were_ordered() -> None:
    assert set(callers_of([(0.0, 1.0), (0.1, 0.9), (0.89, 1.5), (0.95, 2.0)], 2)) == {0, 1}


def test_tokens_and_their_times_come_from_a_stream() -> None:
    rows = read_record(RECORDED / "perf_analyzer_stream.json", Closed(2))
    found = made(rows, Closed(2), Limits(requests=20), stream=True, slo="ttft<1s,latency<1s")
    assert found.tokens is not None and found.tokens.written == sum(found.tokens.each)
    assert set(found.tokens.each) == {5, 8} and found.goodput == 1.0
    assert found.ttft is not None and found.latency is not None and found.ttft.p50 <= found.latency.p50
    assert found.tpot is not None and found.gaps is not None and found.tokens_per_second is not None


def test_requests_of_an_open_load_count_from_when_they_were_due() -> None:
    rows = read_record(RECORDED / "perf_analyzer_open.json", TRACED, TRACE)
    assert [each.due - rows[0].due for each in rows] == pytest.approx(TRACE, abs=1e-6)
    late = [each.sent - each.due for each in rows]
    assert min(late) == pytest.approx(0, abs=1e-6) and max(late) < 0.05


def test_a_stalled_sender_makes_requests_late_not_fast(tmp_path: Path) -> None:
    requests = [_request(at, at + 0.01) for at in (1.0, 1.1, 1.5)]  # the last two were due at 1.1 and 1.2
    (tmp_path / "record.json").write_text(json.dumps({"experiments": [{"requests": requests}]}))
    found = made(read_record(tmp_path / "record.json", Open(10.0), (0.0, 0.1, 0.2)), Open(10.0), Limits(requests=3))
    assert found.latency is not None and found.latency.max == pytest.approx(310, rel=2e-3)


def test_the_warm_up_is_left_out_and_no_more_counts_than_was_ordered() -> None:
    rows = [recorded(at / 10, at / 10, at / 10 + 0.05) for at in range(50)]

    def due(limits: Limits) -> list[float]:
        return [each.due for each in counted(rows, limits)]

    assert due(Limits(requests=3, warmup_requests=5)) == [0.5, 0.6, 0.7]
    assert due(Limits(seconds=0.25, warmup_seconds=1.0)) == [1.0, 1.1, 1.2]
    with pytest.raises(HfxError, match="after the warm-up"):
        made(rows, Closed(1), Limits(requests=1, warmup_requests=50))


def test_an_open_load_is_due_as_the_built_in_generator_sends_it() -> None:
    plan = Open(10.0, "poisson", seed=3)
    assert due_times(plan, Limits(requests=20, warmup_requests=5)) == tuple(plan.times(25, None))
    assert due_times(Open(10.0), Limits(seconds=1.0, warmup_seconds=0.5)) == tuple(n / 10 for n in range(15))
    burst = due_times(Open(arrivals="burst"), Limits(requests=3, warmup_requests=2))
    assert burst == (0.0, 0.25, 0.5, 0.5, 0.5)


def test_pauses_come_before_each_request_and_a_long_one_at_the_end(tmp_path: Path) -> None:
    write_times(TRACE, tmp_path / "pauses")
    assert (tmp_path / "pauses").read_text().splitlines() == [
        "1000",
        "50000",
        "10000",
        "140000",
        "0",
        "300000",
        str(round(NEVER * 1e6)),
    ]


def test_inputs_have_every_tensor_with_its_shape(tmp_path: Path) -> None:
    requests = [Request({"text_input": ("é",), "stop_words": ("a", "b")}), Request({"seed": (1,)})]
    write_inputs(requests, tmp_path / "inputs")
    first, second = json.loads((tmp_path / "inputs").read_text())["data"]
    assert first["stop_words"] == {"content": ["a", "b"], "shape": [2]}
    assert second == {"seed": {"content": [1], "shape": [1]}}


def test_a_float_that_json_lacks_does_not_spoil_the_record(tmp_path: Path) -> None:
    text = (RECORDED / "perf_analyzer_stream.json").read_text()
    found = text.index('"output_log_probs":') + len('"output_log_probs":')
    end = min(text.index(",", found), text.index("}", found))
    (tmp_path / "record.json").write_text(text[:found] + text[end:])
    assert len(read_record(tmp_path / "record.json", Closed(2))) == 20


def test_a_damaged_record_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"experiments":[')
    with pytest.raises(HfxError, match="can't be read"):
        read_record(tmp_path / "record.json", Closed(2))


def test_the_reason_of_a_failure_is_one_line() -> None:
    found = failure((RECORDED / "perf_analyzer_failure.txt").read_text())
    assert "max_tokens is -8; allowed: a whole number of at least 1" in found.message
    assert isinstance(failure("perf_analyzer: unrecognized option '--nonsense'"), UsageError)


@pytest.mark.parametrize("flag", ["--concurrency-range", "-m", "-p=3", "--streaming", "--input-data"])
def test_flags_that_hfx_sets_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="is set by hfx"):
        check_arguments(["--max-threads", "8", flag], perf_analyzer.OWN)
    check_arguments(["--max-threads", "8", "--percentile", "95"], perf_analyzer.OWN)


@pytest.mark.parametrize("flag", ["--users=3", "-t", "--host", "--headless"])
def test_options_of_locust_that_hfx_sets_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="is set by hfx"):
        check_arguments(["--csv", "x", flag], locust.OWN)
    check_arguments(["--csv", "x", "--loglevel", "DEBUG"], locust.OWN)


def test_records_of_locust_become_figures() -> None:
    rows = locust.read_records(RECORDED / "locust_stream.jsonl")
    found = made(rows, Closed(4), Limits(requests=20, warmup_requests=8), stream=True)
    assert found.requests.succeeded == 20 and found.tokens is not None and set(found.tokens.each) == {5, 8}
    assert found.ttft is not None and found.tpot is not None


def test_errors_of_locust_are_counted_by_kind() -> None:
    found = made(locust.read_records(RECORDED / "locust_failed.jsonl"), Closed(4), Limits(requests=2), stream=True)
    assert found.requests.errors == {"RequestRefused": 2} and found.latency is None
    assert "max_tokens is -8" in found.requests.words["RequestRefused"]


def test_a_record_that_is_still_written_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    text = (RECORDED / "locust_stream.jsonl").read_text()
    (tmp_path / "records").write_text(text + '{"due": 1')
    assert len(locust.read_records(tmp_path / "records")) == 30


def test_a_client_of_a_single_core_that_fills_it_is_saturated() -> None:
    rows = locust.read_records(RECORDED / "locust_stream.jsonl")
    busy = made(rows, Closed(4), Limits(requests=20), stream=True, cores=0.97)
    many = made(rows, Closed(4), Limits(requests=20), stream=True, cores=1.7, single_core=False)
    assert busy.client is not None and busy.client.saturated
    assert many.client is not None and not many.client.saturated and many.client.cores == 1.7


def test_users_of_an_open_load_are_those_who_may_wait_at_the_same_time() -> None:
    assert locust.users_for([n / 64 for n in range(500)], timeout=2.0) == 128
    assert locust.users_for([n / 64 for n in range(50)], timeout=60.0) == 50
    assert locust.users_for([0.0] * 10_000, timeout=1.0) == locust.MAX_USERS


def test_leaving_ends_the_process(tmp_path: Path) -> None:
    program = "import time; sum(range(3000000)); print('up', flush=True); time.sleep(60)"
    with ToolProcess([sys.executable, "-c", program], tmp_path / "o") as tool:
        while not tool.text:
            time.sleep(0.01)
        assert tool.alive and tool.text == "up\n" and tool.processor_seconds > 0
    assert not tool.alive and tool.processor_seconds == 0


def test_a_process_starts_while_other_threads_use_grpc(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        stop = threading.Event()
        for _ in range(2):
            threads.submit(_connect_until, stop)
        try:
            for _ in range(40):  # of a hundred children whose start ran gRPC's fork handlers, 7 ended
                with ToolProcess((sys.executable, "-S", "-c", "print('started')"), tmp_path / "output.txt") as process:
                    while process.alive:
                        time.sleep(0.01)
                assert process.text == "started\n"
        finally:
            stop.set()


def _connect_until(stop: threading.Event) -> None:
    while not stop.is_set():
        with grpc.insecure_channel("127.0.0.1:1") as channel, suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=0.05)


def test_a_process_that_has_ended_by_itself_is_left_without_an_error(tmp_path: Path) -> None:
    with ToolProcess([sys.executable, "-c", "print('done')"], tmp_path / "o") as tool:
        while tool.alive:
            time.sleep(0.01)
        tool.interrupt(1.0)
    assert tool.text == "done\n"


def test_the_process_does_not_outlive_a_starter_that_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "o"
    subprocess.run([sys.executable, "-c", ORPHAN, str(output)], check=False, timeout=60)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(output.read_text())).wait(10)
    assert not psutil.pid_exists(int(output.read_text()))


def _request(sent: float, answered: float) -> dict[str, object]:
    return {"timestamp": round(sent * 1e9), "response_timestamps": [round(answered * 1e9)], "response_outputs": [{}]}
