"""Comparisons on a real Triton: both devices, running servers, settings, precisions and a peer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.perf.compare.comparison import compare
from hfx.perf.compare.peers import peer_cases
from hfx.perf.compare.request import Request, metadata, sides
from hfx.perf.compare.side import Case, Session
from hfx.perf.compare.variants import parse_variants, variant_sides
from hfx.perf.load import Closed, Limits, RequestSet
from hfx.perf.load import Request as LoadRequest
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run
from hfx.perf.server import gpus
from hfx.repository import lint
from hfx.repository.edit import scratch
from hfx.repository.staging import stagings
from hfx.triton import EmbeddedServer
from tests import zoo

pytestmark = pytest.mark.triton
NAME = "sentiment"
ASKS = RequestSet(
    tuple(LoadRequest({"text_input": (text,)}) for text in ("A lovely garden!", "What a mess.", "Fine.")), "texts"
)
CASES = [Case(Closed(callers), MeasureSpec(ASKS, Limits(requests=30, warmup_requests=3))) for callers in (1, 3)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one classifier, fp32 on CPU and fp16 on GPU."""
    folder = tmp_path_factory.mktemp("compared")
    options = ExportOptions(
        name=NAME, precision=None, device="both", cpu_runtime="onnxruntime", repository=folder, max_batch_size=16
    )
    export(make_plan(open_checkpoint(str(checkpoint())), options), lambda title: nullcontext())
    return folder


def checkpoint() -> Path:
    return zoo.checkpoint("sentiment-distilbert")


def measured(request: Request, cases: Sequence[Case] = CASES, rounds: int = 2) -> tuple[list[Run], list[str]]:
    notes: list[str] = []
    session = Session()
    with sides(request, session, notes) as found:
        return [*compare(found, cases, rounds, notes, session)], notes


def turns(runs: Sequence[Run]) -> list[tuple[str, int | None, int]]:
    return [(run.subject.label, run.load.concurrency, run.round) for run in runs]


@pytest.mark.skipif(bool(gpus.look()), reason="there is a GPU here")
def test_the_cpu_is_measured_and_the_gpu_is_said_not_to_be(both: Path):
    runs, notes = measured(Request(NAME, "devices", ("cpu,gpu",), both))
    assert turns(runs) == [("cpu", 1, 0), ("cpu", 1, 1), ("cpu", 3, 0), ("cpu", 3, 1)]
    assert notes == ["gpu was not run: this machine has no GPU that nvidia-smi knows of"]
    for run in runs:
        assert (run.subject.device, run.subject.precision, run.subject.task) == ("cpu", "fp32", "text-classification")
        assert run.requests.succeeded == 30 and run.throughput > 0 and run.server and run.server.cores is not None


def test_the_model_is_known_before_a_server_runs(both: Path):
    found = metadata(Request(NAME, "devices", ("cpu",), both))
    assert found.input_types == {"text_input": "BYTES", "top_k": "INT32"}
    with EmbeddedServer(both, models=[NAME]) as server:
        served = metadata(Request(NAME, "target", (f"cpu={server.grpc_url}",)))
    assert found.input_types == served.input_types


def test_running_servers_are_compared_and_a_dead_one_is_named(both: Path):
    with EmbeddedServer(both, models=[NAME]) as server:
        words = (f"cpu={server.grpc_url}", "away=127.0.0.1:9")
        runs, notes = measured(Request(NAME, "target", words), CASES[:1])
    assert turns(runs) == [("cpu", 1, 0), ("cpu", 1, 1)]
    assert len(notes) == 1 and notes[0].startswith("away was not measured: ")


def test_variants_are_clean_copies_that_differ_only_as_said(both: Path):
    variants = parse_variants(["max_queue_delay=0,500us", "instances=1,2"])
    before = {path: path.read_bytes() for path in both.rglob("*.pbtxt")}
    notes: list[str] = []
    with scratch(both, NAME) as folder:
        found = variant_sides(both, NAME, "cpu", variants, folder, notes)
        copies = sorted(folder.glob("variant*"))
        assert [side.label for side in found] == [
            "max_queue_delay=0us, instances=1",
            "max_queue_delay=0us, instances=2",
            "max_queue_delay=500us, instances=1",
            "max_queue_delay=500us, instances=2",
        ]
        assert notes == [] and len(copies) == 4
        for copy, variant in zip(copies, variants, strict=True):
            assert [finding for finding in lint(copy) if finding.severity == "error"] == []
            assert _changes(both, copy) == _expected(variant)
    assert before == {path: path.read_bytes() for path in both.rglob("*.pbtxt")}
    assert {path.name for path in both.iterdir() if not path.name.startswith(".")} == {
        NAME, f"{NAME}_net", f"{NAME}_postprocess", f"{NAME}_tokenize",
    }  # fmt: skip


def _changes(published: Path, copy: Path) -> set[str]:
    """The lines that the copy's configurations for the CPU have and the published ones have not, comments aside."""
    found = set()
    for path in copy.rglob("*.pbtxt"):
        old = (published / path.relative_to(copy)).read_text().splitlines()
        found |= {
            f"{path.relative_to(copy)}: {line}"
            for line in path.read_text().splitlines()
            if line not in old and not line.startswith("#")
        }
    return found


def _expected(variant: dict[str, int]) -> set[str]:
    lines = []
    if variant["max_queue_delay"]:
        lines.append("dynamic_batching { max_queue_delay_microseconds: 500 default_queue_policy { } }")
    if variant["instances"] > 1:
        lines.append("instance_group { count: 2 kind: KIND_CPU }")
    files = (f"{NAME}_net/config.pbtxt", f"{NAME}_net/configs/cpu.pbtxt")
    return {f"{file}: {line}" for file in files for line in lines}


def test_variants_are_measured_in_turn_on_servers_of_their_own(both: Path):
    runs, notes = measured(Request(NAME, "variants", ("instances=1,2",), both), CASES[:1])
    assert notes == []
    assert [each[0] for each in turns(runs)] == ["instances=1", "instances=2", "instances=2", "instances=1"]
    assert [run.subject.settings for run in runs[:2]] == [{"instances": 1}, {"instances": 2}]


def test_precisions_are_exported_or_taken_and_who_is_not_for_it_is_noted(both: Path):
    words = ("fp32,int8,int4,missing-model",)
    runs, notes = measured(Request(NAME, "precisions", words, both, checkpoint=str(checkpoint())), CASES[:1], 1)
    assert [(run.subject.label, run.subject.precision) for run in runs] == [("fp32", "fp32"), ("int8", "int8")]
    assert any(re.match("int4 was not run: .*int4 is not for encoder tasks", note) for note in notes)
    assert any(note.startswith("missing-model was not run: There is no model") for note in notes)
    assert stagings(both) == []


def test_a_peer_gets_the_same_texts_beside_the_server(both: Path):
    request = Request(NAME, "peers", ("torch",), both, checkpoint=str(checkpoint()))
    cases = peer_cases([Closed(2)], ASKS, "text-classification", 8)
    runs, notes = measured(request, cases)
    assert notes == []
    assert [each[0] for each in turns(runs)] == ["hfx fp32", "torch fp32", "torch fp32", "hfx fp32"]
    assert {run.load.label for run in runs} == {"2 callers"}
    assert {run.requests.succeeded for run in runs} == {8}
