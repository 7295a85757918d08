"""One load as one Run: what is known of the model, what a load without an answer says, and which tool is asked.

The server is scripted and tells neither statistics nor metrics: that must cost nothing but those figures.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from hfx.errors import LoadFailed, ModelUnknown, ServerUnreachable, UsageError
from hfx.perf.load import Closed, Limits, Open, Request, RequestSet, Slo
from hfx.perf.loadgen.log import Progress
from hfx.perf.measuring import MeasureSpec, Target, device_of, measure, metadata, nothing
from hfx.perf.results import Requests
from tests.unit.client_servers import Script, grpc_server


def asks(*texts: str) -> RequestSet:
    return RequestSet(tuple(Request({"text_input": (text,)}) for text in texts), "orders")


TEN = MeasureSpec(asks("write 3"), Limits(requests=10, timeout=10), stream=False)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def target(script: Script) -> Iterator[Target]:
    with grpc_server(script) as url:
        yield Target("writer", url)


# What is measured


def test_a_run_says_what_was_asked_of_whom_and_how(target: Target) -> None:
    run = measure(target, Closed(2), TEN, label="mine", round=3, case="short", settings={"slots": 4})
    assert (run.subject.label, run.subject.model, run.subject.task) == ("mine", "writer", "summarization")
    assert (run.subject.tool, run.subject.protocol, run.subject.settings) == ("builtin", "grpc", {"slots": 4})
    assert (run.load.kind, run.load.concurrency, run.load.data, run.load.case) == ("closed", 2, "orders", "short")
    assert (run.load.limit, run.round, run.slo) == ("10 requests", 3, "")
    assert (run.requests.sent, run.requests.succeeded, run.requests.errors) == (10, 10, {})
    assert run.latency is not None and run.latency.count == 10


def test_generators_stream_unless_told_otherwise(target: Target) -> None:
    run = measure(target, Closed(1), replace(TEN, stream=None, slo=Slo.parse("ttft<5s")))
    assert (run.subject.protocol, run.slo, run.goodput) == ("grpc-stream", "ttft<5s", 1.0)
    assert run.ttft is not None and run.tokens is not None and run.tokens.written == 30


def test_what_is_no_generator_is_not_streamed(script: Script, target: Target) -> None:
    script.task = ""  # then its tensors tell, and they are a generator's: so the task is given
    known = replace(target, task="text-classification")
    assert measure(known, Closed(1), replace(TEN, stream=None)).subject.protocol == "grpc"
    with pytest.raises(UsageError, match="can't be streamed"):
        measure(known, Closed(1), replace(TEN, stream=True))


def test_a_server_without_statistics_costs_only_their_figures(target: Target) -> None:
    run = measure(target, Open(rate=100.0), TEN)
    assert run.server is not None and (run.server.steps, run.server.counters) == ((), {})
    assert any("gives no statistics" in note for note in run.notes)
    assert run.server.cores is not None  # of this very process, in which the server runs


def test_progress_is_heard_and_a_stop_ends_it_early(target: Target) -> None:
    heard: list[Progress] = []
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        heard.append(progress)
        if progress.succeeded:
            stop.set()

    order = replace(TEN, limits=Limits(seconds=60))
    run = measure(target, Closed(1), order, watch=watch, stop=stop)
    assert run.interrupted and run.requests.succeeded > 0 and run.seconds < 30
    assert heard[-1].failed == 0


# What can't be measured


def test_nobody_at_the_address_is_told_before_anything_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ServerUnreachable, match=url):
        measure(Target("writer", url), Closed(1), TEN)


def test_an_unknown_model_is_told_with_those_that_there_are(target: Target) -> None:
    with pytest.raises(ModelUnknown, match="has no model 'reader'") as caught:
        metadata(replace(target, model="reader"))
    assert "writer" in caught.value.fix


def test_without_one_answer_the_most_frequent_reason_is_the_error(target: Target) -> None:
    orders = asks(
        "fail INVALID_ARGUMENT max_tokens is 0", "fail INTERNAL the step failed", "fail INTERNAL the step failed"
    )
    with pytest.raises(LoadFailed, match=r"None of 9 requests to writer succeeded.*the step failed") as caught:
        measure(target, Closed(1), replace(TEN, requests=orders, limits=Limits(requests=9)))
    assert caught.value.exit_code == 5


def test_a_server_that_is_gone_before_the_first_answer_is_the_error(script: Script) -> None:
    with ExitStack() as running:
        url = running.enter_context(grpc_server(script))
        order = replace(TEN, requests=asks("sleep 2"), limits=Limits(seconds=60))
        with pytest.raises(LoadFailed, match=r"None of .* succeeded: ServerUnreachable"):
            measure(Target("writer", url), Closed(1), order, watch=lambda progress: running.close())


def test_timeouts_are_a_reason_too() -> None:
    words = {"RequestTimeout": "no answer within 1 s", "ServerBusy": "full"}
    found = nothing("writer", Requests(5, 0, timeouts=3, errors={"ServerBusy": 2}, words=words))
    assert found.message == "None of 5 requests to writer succeeded: RequestTimeout (3): no answer within 1 s"
    assert "No request was sent" in nothing("writer", Requests(0, 0)).message


def test_a_tool_that_there_is_not_and_flags_that_nobody_takes(target: Target) -> None:
    with pytest.raises(UsageError, match="no tool 'wrk'"):
        measure(target, Closed(1), replace(TEN, tool="wrk"))
    with pytest.raises(UsageError, match="no flags of its own: --shape 3"):
        measure(target, Closed(1), replace(TEN, arguments=("--shape", "3")))


def test_a_server_that_does_not_say_its_device_has_none(target: Target) -> None:
    assert device_of(target) == ""
