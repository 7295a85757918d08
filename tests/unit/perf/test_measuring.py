"""One load as one Run: facts about the model, errors of a load without answers, and the choice of a tool.

The server has no metrics, and in one test no statistics; only those figures must be missing then.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hfx.errors import LoadFailed, ServerUnreachable, UsageError
from hfx.perf.load import Closed, LoadLimits, Open, RequestSet, Slo
from hfx.perf.measuring import MeasureSpec, Target, device_of, measure
from tests.rigs.servers.perf_fake_server import CLASSIFIER, WRITER, FakeServer, orders

TEN = MeasureSpec(orders("write 3"), LoadLimits(requests=10, timeout=10), stream=False)


@pytest.fixture
def target(server: FakeServer) -> Target:
    return Target(WRITER, server.url)


def test_a_run_has_its_subject_and_its_load(target: Target) -> None:
    run = measure(target, Closed(2), TEN, label="mine", round=3, case="short", settings={"slots": 4})
    assert (run.subject.label, run.subject.model, run.subject.task) == ("mine", WRITER, "text-generation")
    assert (run.subject.tool, run.subject.protocol, run.subject.settings) == ("builtin", "grpc", {"slots": 4})
    assert (run.load.kind, run.load.concurrency, run.load.data, run.load.case) == ("closed", 2, "orders", "short")
    assert (run.load.limit, run.round, run.slo) == ("10 requests", 3, "")


def test_generators_stream_unless_told_otherwise(target: Target) -> None:
    run = measure(target, Closed(1), replace(TEN, stream=None, slo=Slo.parse("ttft<5s")))
    assert (run.subject.protocol, run.slo, run.goodput) == ("grpc-stream", "ttft<5s", 1.0)
    assert run.ttft is not None and run.tokens is not None and run.tokens.written == 30


def test_a_model_that_is_not_a_generator_is_not_streamed(target: Target) -> None:
    labels = replace(target, model=CLASSIFIER)
    assert measure(labels, Closed(1), replace(TEN, stream=None)).subject.protocol == "grpc"
    with pytest.raises(UsageError, match="can't be streamed"):
        measure(labels, Closed(1), replace(TEN, stream=True))
    with pytest.raises(UsageError, match="part of the generator 'writer'"):
        measure(replace(target, model=f"{WRITER}_stream"), Closed(1), replace(TEN, stream=True))


def test_a_server_without_statistics_costs_only_their_figures(target: Target, server: FakeServer) -> None:
    server.has_statistics = False
    run = measure(target, Open(rate=100.0), TEN)
    assert run.server is not None and (run.server.steps, run.server.counters) == ((), {})
    assert any("gives no statistics" in note for note in run.notes)
    assert run.server.memory  # of this very process, in which the server runs
    assert device_of(target) == ""


@pytest.mark.parametrize(
    ("requests", "limits", "reason"),
    [
        (orders("hang", "fail INTERNAL no", "fail INTERNAL no"), LoadLimits(requests=6, timeout=0.2), "ServerError"),
        (orders("hang", "hang", "fail INTERNAL no"), LoadLimits(requests=6, timeout=0.2), "RequestTimeout"),
        (orders("sleep 2"), LoadLimits(seconds=60), "ServerUnreachable"),
    ],
)
def test_without_one_answer_the_most_frequent_reason_is_the_error(
    requests: RequestSet, limits: LoadLimits, reason: str, server: FakeServer, target: Target
) -> None:
    gone = (lambda progress: server.kill()) if limits.seconds else None
    with pytest.raises(LoadFailed, match=rf"None of \d+ requests to writer succeeded: {reason} ") as caught:
        measure(target, Closed(1), replace(TEN, requests=requests, limits=limits), watch=gone)
    assert caught.value.exit_code == 5


def test_a_server_that_is_down_and_a_wrong_tool_are_refused(server: FakeServer, target: Target) -> None:
    with pytest.raises(UsageError, match="no tool 'wrk'"):
        measure(target, Closed(1), replace(TEN, tool="wrk"))
    with pytest.raises(UsageError, match="takes no flags: --shape 3"):
        measure(target, Closed(1), replace(TEN, arguments=("--shape", "3")))
    server.kill()
    with pytest.raises(ServerUnreachable, match=server.url):
        measure(target, Closed(1), TEN)
