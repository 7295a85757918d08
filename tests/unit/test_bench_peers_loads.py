"""Loads of libraries without a server: who is due when, static batches, and what is made of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from bench.errors import PeerFailed
from bench.peers.generated import asked, log_of, now, text_load
from bench.peers.loads import Line, Prompt, TextLoad, Times, alike, serve_batches
from hfx.perf.load import Closed, Limits, Open, Request, RequestSet, Slo
from hfx.perf.loadgen.stats import run_of
from hfx.perf.results.schema import Scalar, Subject

STEP = 0.01


class Steps:
    """A static batch: a token a row every STEP, as a library with callbacks does it."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, batch: Sequence[Prompt], told: Callable[[int, int], None]) -> None:
        self.batches.append(len(batch))
        for token in range(1, max(prompt.new for prompt in batch) + 1):
            time.sleep(STEP)
            for row, prompt in enumerate(batch):
                if token <= prompt.new:
                    told(row, token)


def served(line: Line, new: Sequence[int] = (2,), rows: int = 4, unlike: float = 1.5) -> Steps:
    steps = Steps()
    serve_batches(line, lambda number: Prompt((1, 2, 3), new[number % len(new)]), steps, rows, unlike)
    return steps


def test_requests_at_their_times() -> None:
    line = Line((0.0, 0.1, 0.1))
    steps = served(line)
    assert steps.batches == [1, 2]
    assert [each.due for each in line.times] == [0.0, 0.1, 0.1]
    for each in line.times:
        assert each.first - each.due >= STEP
        assert each.end - each.due >= 2 * STEP
        assert each.written == 2


def test_a_late_request_counts_from_its_time() -> None:
    line = Line((0.0, STEP))
    served(line, new=(10,))
    first, second = line.times
    assert second.due == STEP
    assert second.end - second.due >= (first.end - STEP) + 10 * STEP  # it waited for the first, whatever was sent


def test_callers_send_the_next_when_the_last_is_over() -> None:
    line = Line((0.0, 0.0), again=True, count=6)
    steps = served(line)
    assert len(line.times) == 6
    assert sum(steps.batches) == 6
    for before, after in zip(line.times, line.times[2:], strict=False):
        assert after.due == before.end
        assert after.caller == before.caller
    assert {each.caller for each in line.times} == {0, 1}


def test_callers_stop_after_so_many_seconds() -> None:
    line = Line((0.0,), again=True, seconds=0.1)
    served(line)
    assert all(each.due < 0.1 for each in line.times)
    assert line.times[-1].end >= 0.1


def test_rows_leave_at_their_own_lengths() -> None:
    line = Line((0.0, 0.0))
    served(line, new=(2, 6))
    assert line.times[1].end - line.times[0].end >= 3 * STEP


def test_only_prompts_of_about_one_length_share_a_batch() -> None:
    assert alike({7: 10, 8: 14, 9: 16, 11: 7}, 1.5) == [7, 8, 11]


def asks(*inputs: dict[str, tuple[Scalar, ...]]) -> RequestSet:
    return RequestSet(tuple(Request({"text_input": ("A text",), **each}) for each in inputs), "texts")


def test_what_a_request_asks_for() -> None:
    assert asked(asks({"max_tokens": (5,)}, {"max_tokens": (7,), "min_tokens": (7,), "do_sample": (False,)})) == (
        ("A text", 5), ("A text", 7),
    )  # fmt: skip
    assert asked(asks({}), labels=True) == (("A text", 0),)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "exactly so many tokens"),
        ({"max_tokens": (5,), "min_tokens": (2,)}, "exactly so many tokens"),
        ({"max_tokens": (5,), "temperature": (0.7,)}, "temperature=0.7"),
        ({"max_tokens": (5,), "num_beams": (4,)}, "num_beams=4"),
    ],
)
def test_what_no_peer_answers(inputs: dict[str, tuple[Scalar, ...]], words: str) -> None:
    with pytest.raises(PeerFailed, match=words):
        asked(asks(inputs))


def test_plans() -> None:
    one = asks({"max_tokens": (5,)})
    closed = text_load(Closed(3), one, Limits(requests=10, warmup_requests=2))
    assert (closed.at, closed.again, closed.count, closed.warm) == ((0.0, 0.0, 0.0), True, 10, 2)
    assert closed.warming is not None
    assert closed.warming.at == (0.0, 0.0)
    assert text_load(Open(10.0), one, Limits(seconds=0.35)).at == (0.0, 0.1, 0.2, 0.3)
    assert text_load(Open(arrivals="burst"), one, Limits(requests=3)).at == (0.0, 0.0, 0.0)
    with pytest.raises(PeerFailed, match="no end"):
        text_load(Closed(1), one, Limits())
    with pytest.raises(PeerFailed, match="warm-up"):
        text_load(Closed(1), one, Limits(requests=5, warmup_seconds=1.0))


def test_figures() -> None:
    times = [Times(0.5 * n, first=0.5 * n + 0.1, end=0.5 * n + 0.3, read=4, written=5) for n in range(5)]
    plan, slo = Open(2.0), Slo.parse("ttft<200ms,latency<1s")
    found = run_of(log_of(times, now()), Subject("a", "a", "peer"), plan.load("", ""), plan, slo)
    assert found.requests.sent == found.requests.succeeded == 5
    assert found.throughput == pytest.approx(2.0)
    assert found.tokens is not None and found.tokens.each == (5,) * 5
    assert found.tokens_per_second == pytest.approx(10.0)
    assert found.latency is not None and found.latency.p50 == pytest.approx(300, rel=0.01)
    assert found.ttft is not None and found.ttft.p50 == pytest.approx(100, rel=0.01)
    assert found.tpot is not None and found.tpot.p50 == pytest.approx(50, rel=0.01)
    assert found.goodput == 1.0


def test_a_load_can_travel_to_a_process() -> None:
    assert hash(TextLoad((("a", 1),), (0.0,))) == hash(TextLoad((("a", 1),), (0.0,)))
