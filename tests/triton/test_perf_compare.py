"""`hfx perf compare` on a real Triton: devices and cost; running servers, settings, precisions, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.perf.compare.candidates import Case, CompareSpec, Session
from hfx.perf.compare.comparison import compare
from hfx.perf.compare.kinds import candidates_of, metadata
from hfx.perf.load import Closed, LoadLimits, Request, RequestSet
from hfx.perf.machine import local_gpus
from hfx.perf.measuring import MeasureSpec
from hfx.perf.results import Run, read_result
from hfx.repository.staging import stagings
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.servers.perf_server import CLASSIFIER
from tests.rigs.servers.serve_process import HFX

pytestmark = pytest.mark.triton
REQUESTS = RequestSet(tuple(Request({"text_input": (text,)}) for text in ("A lovely garden!", "Fine.")), "texts")
CASES = [Case(Closed(2), MeasureSpec(REQUESTS, LoadLimits(requests=30, warmup_requests=3)))]
PATIENCE = 60.0  # seconds


def measured(spec: CompareSpec, rounds: int = 2) -> tuple[list[Run], list[str]]:
    notes: list[str] = []
    session = Session()
    with candidates_of(spec, session, notes) as candidates:
        return [*compare(candidates, CASES, rounds, notes, session)], notes


@pytest.mark.skipif(bool(local_gpus()), reason="there is a GPU here")
def test_a_comparison_of_devices_notes_the_missing_gpu_and_has_costs(
    perf_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "r.json"
    words = ["perf", "compare", CLASSIFIER, "--devices", "cpu,gpu", "--repository", str(perf_models)]
    words += ["--concurrency", "1,2", "--requests", "20", "--warmup", "2", "--words", "fixed:6", "--rounds", "2"]
    words += ["--slo", "latency<5s", "--price", "cpu=0.36/h", "--price", "gpu=4/h", "--output", str(output)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "Starting cpu" in said.err
    assert "gpu was not run: sentiment" in said.out
    result = read_result(output)
    assert (result.kind, result.base) == ("compare", "cpu")
    assert [run.subject.device for run in result.runs] == ["cpu"] * 4
    assert all(run.goodput == 1.0 and run.cost and run.cost.price_per_hour == 0.36 for run in result.runs)
    assert all(run.server and run.server.memory for run in result.runs)
    assert "break even" not in result.details, "there is no number for what was not run"


@pytest.mark.full
def test_running_servers_are_compared_and_a_dead_one_is_named(perf_models: Path) -> None:
    with EmbeddedServer(perf_models, models=[CLASSIFIER]) as server:
        spec = CompareSpec(CLASSIFIER, "target", (f"cpu={server.grpc_url}", "away=127.0.0.1:9"))
        runs, notes = measured(spec)
        published = metadata(CompareSpec(CLASSIFIER, "devices", ("cpu",), perf_models))
        assert published.input_types == metadata(spec).input_types
    assert [(run.subject.label, run.round) for run in runs] == [("cpu", 0), ("cpu", 1)]
    assert len(notes) == 1 and notes[0].startswith("away was not measured: ")


@pytest.mark.full
def test_variants_are_copies_measured_in_turn_and_the_published_model_stays(perf_models: Path) -> None:
    before = {path: path.read_bytes() for path in perf_models.rglob("*.pbtxt")}
    runs, notes = measured(CompareSpec(CLASSIFIER, "variants", ("instances=1,2",), perf_models))
    assert notes == []
    settings = [run.subject.settings for run in runs]
    assert settings == [{"instances": number} for number in (1, 2, 2, 1)]
    assert [run.subject.label for run in runs[:2]] == ["instances=1", "instances=2"]
    assert before == {path: path.read_bytes() for path in perf_models.rglob("*.pbtxt")}
    assert stagings(perf_models) == []


@pytest.mark.full
def test_precisions_are_exported_or_reused_and_failures_become_notes(perf_models: Path) -> None:
    values = ("int8,fp32,int4,missing-model",)
    checkpoint = str(zoo.checkpoint("sentiment-distilbert"))
    runs, notes = measured(CompareSpec(CLASSIFIER, "precisions", values, perf_models, checkpoint=checkpoint), 1)
    assert [(run.subject.label, run.subject.precision) for run in runs] == [("int8", "int8"), ("fp32", "fp32")]
    assert any(note.startswith("int4 was not run: ") for note in notes)
    assert any(note.startswith("missing-model was not run") for note in notes)
    assert stagings(perf_models) == []


@pytest.mark.full
def test_ctrl_c_leaves_a_valid_result_and_no_server(perf_models: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    words = ["--variants", "instances=1,2", "--repository", str(perf_models), "--duration", "60s", "--warmup", "0"]
    command = [*HFX, "perf", "compare", CLASSIFIER, *words, "--output", str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr
        next(line for line in process.stderr if "round 1" in line)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    result = read_result(output)
    assert [run.interrupted for run in result.runs] == [True]
    assert result.notes[0].startswith("Interrupted")
    assert stagings(perf_models) == []
