"""Other tools' recorded outputs as the built-in generator's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfx.errors import HfxError, UsageError
from hfx.perf.load import Closed, Limits, Open, Request, RequestSet, Slo
from hfx.perf.tools import locust, perf_analyzer
from hfx.perf.tools.analyzer_files import NEVER, read_record, write_inputs, write_times
from hfx.perf.tools.analyzer_process import failure_reason
from hfx.perf.tools.requested import Asked, Ended, callers_of, counted, due_times, generated

RECORDED = Path(__file__).parent / "perf_recorded"
TRACE = (0.0, 0.05, 0.06, 0.2, 0.2, 0.5)  # what perf_analyzer_open.json was sent at
QUIET = Ended(cores=0.1)


def requests_of(name: str) -> list[dict[str, list[int]]]:
    [experiment] = json.loads((RECORDED / name).read_text())["experiments"]
    return experiment["requests"]  # type: ignore[no-any-return]


def test_latencies_of_a_closed_load_are_those_of_the_record() -> None:
    asked = read_record(RECORDED / "perf_analyzer_closed.json", Closed(2))
    made = generated(asked, Closed(2), Limits(requests=24), None, False, False, QUIET)
    raw = sorted(
        each["response_timestamps"][0] - each["timestamp"] for each in requests_of("perf_analyzer_closed.json")
    )  # type: ignore[operator]
    assert made.requests.sent == made.requests.succeeded == 24 and made.latency is not None
    assert made.latency.max == pytest.approx(raw[-1] / 1e6, rel=2e-3)  # the histogram has three digits
    assert made.latency.p50 == pytest.approx(raw[11] / 1e6, rel=2e-3)
    assert made.ttft is None and made.tokens is None and made.client is not None and made.client.cores == 0.1


def test_throughput_of_two_callers_is_two_requests_a_latency() -> None:
    asked = [Asked(due=at, sent=at, end=at + 0.1) for step in range(10) for at in (step / 10, step / 10 + 0.05)]
    spans = [(each.sent, each.end) for each in asked]
    callers = callers_of(spans, 2)
    made = generated(
        [Asked(each.due, each.sent, each.end, caller=caller) for each, caller in zip(asked, callers, strict=True)],
        Closed(2), Limits(requests=20), None, False, False, QUIET,
    )  # fmt: skip
    assert made.throughput == pytest.approx(20.0)
    assert sorted(callers) == [0] * 10 + [1] * 10


def test_there_are_never_more_callers_than_were_ordered() -> None:
    assert set(callers_of([(0.0, 1.0), (0.1, 0.9), (0.89, 1.5), (0.95, 2.0)], 2)) == {0, 1}


def test_tokens_and_their_times_come_from_a_stream() -> None:
    asked = read_record(RECORDED / "perf_analyzer_stream.json", Closed(2))
    slo = Slo.parse("ttft<1s,latency<1s")
    made = generated(asked, Closed(2), Limits(requests=20), slo, True, True, QUIET)
    assert made.tokens is not None and made.tokens.written == sum(made.tokens.each)
    assert set(made.tokens.each) == {5, 8} and made.goodput == 1.0
    assert made.ttft is not None and made.latency is not None and made.ttft.p50 <= made.latency.p50
    assert made.tpot is not None and made.gaps is not None and made.tokens_per_second is not None


def test_requests_of_an_open_load_count_from_when_they_were_due() -> None:
    asked = read_record(RECORDED / "perf_analyzer_open.json", Open(arrivals="trace", trace=TRACE), TRACE)
    start = asked[0].due
    assert [each.due - start for each in asked] == pytest.approx(TRACE, abs=1e-6)
    late = [each.sent - each.due for each in asked]
    assert min(late) == pytest.approx(0, abs=1e-6) and max(late) < 0.05


def test_a_stalled_sender_makes_requests_late_not_fast(tmp_path: Path) -> None:
    record = {
        "experiments": [
            {"requests": [_request(at, at + 0.01) for at in (1.0, 1.1, 1.5)]}  # the last two were due at 1.1 and 1.2
        ]
    }
    (tmp_path / "record.json").write_text(json.dumps(record))
    plan = Open(10.0)
    made = generated(
        read_record(tmp_path / "record.json", plan, (0.0, 0.1, 0.2)),
        plan,
        Limits(requests=3),
        None,
        False,
        False,
        QUIET,
    )
    assert made.latency is not None and made.latency.max == pytest.approx(310, rel=2e-3)


def test_the_warm_up_is_left_out_and_no_more_counts_than_was_ordered() -> None:
    asked = [Asked(due=at / 10, sent=at / 10, end=at / 10 + 0.05) for at in range(50)]
    assert [each.due for each in counted(asked, Limits(requests=3, warmup_requests=5))] == [0.5, 0.6, 0.7]
    assert [each.due for each in counted(asked, Limits(seconds=0.25, warmup_seconds=1.0))] == [1.0, 1.1, 1.2]
    with pytest.raises(HfxError, match="after the warm-up"):
        generated(asked, Closed(1), Limits(requests=1, warmup_requests=50), None, False, False, QUIET)


def test_an_open_load_is_due_as_the_built_in_generator_sends_it() -> None:
    plan = Open(10.0, "poisson", seed=3)
    assert due_times(plan, Limits(requests=20, warmup_requests=5)) == tuple(plan.times(25, None))
    assert due_times(Open(10.0), Limits(seconds=1.0, warmup_seconds=0.5)) == tuple(n / 10 for n in range(15))
    burst = due_times(Open(arrivals="burst"), Limits(requests=3, warmup_requests=2))
    assert burst == (0.0, 0.25, 0.5, 0.5, 0.5)


def test_pauses_come_before_each_request_and_a_long_one_at_the_end(tmp_path: Path) -> None:
    lines = write_times(TRACE, tmp_path / "pauses").read_text().splitlines()
    assert lines == ["1000", "50000", "10000", "140000", "0", "300000", str(round(NEVER * 1e6))]


def test_inputs_have_every_tensor_with_its_shape(tmp_path: Path) -> None:
    asks = RequestSet(
        (Request({"text_input": ("é",), "stop_words": ("a", "b")}), Request({"text_input": ("x",), "seed": (1,)})), ""
    )
    written = json.loads(write_inputs(asks, tmp_path / "inputs", {"stream": True}).read_text())
    first, second = written["data"]
    assert first["stop_words"] == {"content": ["a", "b"], "shape": [2]}
    assert first["stream"] == second["stream"] == {"content": [True], "shape": [1]} and "seed" not in first


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
    words = (RECORDED / "perf_analyzer_failure.txt").read_text()
    assert failure_reason(words) == "max_tokens is -8; allowed: a whole number of at least 1"
    assert failure_reason("all is well") == ""


@pytest.mark.parametrize("flag", ["--concurrency-range", "-m", "-p=3", "--streaming", "--input-data"])
def test_flags_that_hfx_sets_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="is set by hfx"):
        perf_analyzer.check_arguments(["--max-threads", "8", flag])
    perf_analyzer.check_arguments(["--max-threads", "8", "--percentile", "95"])


@pytest.mark.parametrize("flag", ["--users=3", "-t", "--host", "--headless"])
def test_options_of_locust_that_hfx_sets_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="is set by hfx"):
        locust.check_arguments(["--csv", "x", flag])
    locust.check_arguments(["--csv", "x", "--loglevel", "DEBUG"])


def test_records_of_locust_become_figures() -> None:
    asked = locust.read_records(RECORDED / "locust_stream.jsonl")
    made = generated(asked, Closed(4), Limits(requests=20, warmup_requests=8), None, True, True, QUIET)
    assert made.requests.succeeded == 20 and made.tokens is not None and set(made.tokens.each) == {5, 8}
    assert made.ttft is not None and made.tpot is not None


def test_errors_of_locust_are_counted_by_kind() -> None:
    asked = locust.read_records(RECORDED / "locust_failed.jsonl")
    made = generated(asked, Closed(4), Limits(requests=2), None, True, True, QUIET)
    assert made.requests.errors == {"RequestRefused": 2} and made.latency is None
    assert "max_tokens is -8" in made.requests.words["RequestRefused"]


def test_a_record_that_is_still_written_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    text = (RECORDED / "locust_stream.jsonl").read_text()
    (tmp_path / "records").write_text(text + '{"due": 1')
    assert len(locust.read_records(tmp_path / "records")) == 30


def test_a_client_in_one_thread_that_fills_its_core_is_said_to_be_saturated() -> None:
    asked = locust.read_records(RECORDED / "locust_stream.jsonl")
    busy = generated(asked, Closed(4), Limits(requests=20), None, True, True, Ended(0.97, in_one_thread=True))
    many = generated(asked, Closed(4), Limits(requests=20), None, True, True, Ended(1.7))
    assert busy.client is not None and busy.client.saturated
    assert many.client is not None and not many.client.saturated and many.client.cores == 1.7


def test_users_of_an_open_load_are_those_who_may_wait_at_the_same_time() -> None:
    assert locust.users_for([n / 64 for n in range(500)], timeout=2.0) == 128
    assert locust.users_for([n / 64 for n in range(50)], timeout=60.0) == 50
    assert locust.users_for([0.0] * 10_000, timeout=1.0) == locust.MOST_USERS


def _request(sent: float, answered: float) -> dict[str, object]:
    return {"timestamp": round(sent * 1e9), "response_timestamps": [round(answered * 1e9)], "response_outputs": [{}]}
