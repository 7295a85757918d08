"""Scenarios from checkpoint to result file on a real Triton, with models so small that figures mean nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.scenarios.verdicts import grouped
from hfx.cli import main
from hfx.perf.results import Result, read_result
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.triton.generation_rig import WRITERS

HFX = [sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())"]
pytestmark = [pytest.mark.triton, pytest.mark.slow]


def scenario(folder: Path, name: str, *words: str) -> Result:
    target = folder / f"{name}.json"
    assert main(["perf", "scenario", name, "--quick", "--output", str(target), *words]) == 0
    return read_result(target)


def test_classifiers_are_measured_served_in_process_and_beside_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = scenario(tmp_path, "classify", "--peers", "hfx,torch")
    labels = {label for _, label in grouped(result.runs)}
    assert labels == {"hfx int8", "hfx int8 in process", "torch fp32"} and not result.notes
    assert all(run.requests.failed == 0 and run.throughput > 0 for run in result.runs)
    said = capsys.readouterr().out
    assert "these figures mean nothing" in said and "×" in said and "Goals" not in said


def test_generators_at_once_write_as_many_tokens_as_their_peer(tmp_path: Path) -> None:
    result = scenario(tmp_path, "mlserver-burst", "--peers", "torch")
    assert {run.subject.label for run in result.runs} == {"hfx int8", "torch fp32"} and not result.notes
    for run in result.runs:
        assert run.tokens is not None and set(run.tokens.each) == {4}


def test_chats_have_times_of_tokens_and_a_goodput(tmp_path: Path) -> None:
    result = scenario(tmp_path, "chat-ragged")
    for run in result.runs:
        assert run.ttft is not None and run.goodput is not None and run.slo == "ttft<200ms,tpot<50ms"


def test_documents_of_a_file_are_summarized(tmp_path: Path) -> None:
    data = tmp_path / "bills.csv"
    data.write_text("bill\n" + "\n".join("The people of the town do enact as follows. " * 40 for _ in range(3)) + "\n")
    result = scenario(tmp_path, "billsum", "--peers", "none", "--data", str(data), "--column", "bill")
    assert "bills.csv" in result.runs[0].load.data


def test_a_checkpoint_of_the_user_is_exported_and_measured(tmp_path: Path) -> None:
    result = scenario(tmp_path, "classify", "--peers", "none", "--model", str(zoo.checkpoint("sentiment-distilbert")))
    assert result.runs[0].subject.model == "sentiment-distilbert"
    assert not any(name.startswith("goal") for name in result.details)


def test_a_server_of_the_user_is_measured_without_peers(tmp_path: Path, writing_server: EmbeddedServer) -> None:
    name = next(iter(WRITERS))
    result = scenario(tmp_path, "faq", "--model", name, "--url", writing_server.grpc_url)
    assert {run.subject.model for run in result.runs} == {name}
    assert any("No peers" in note for note in result.notes)


def test_a_peer_that_is_not_installed_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFX_PERF_CACHE", str(tmp_path / "cache"))
    result = scenario(tmp_path, "mlserver-50rps")
    assert {run.subject.label for run in result.runs} == {"hfx int8"}
    assert any("mlserver bf16 was not measured" in note and "bench.peers install" in note for note in result.notes)


def test_ctrl_c_ends_early_with_what_was_measured(tmp_path: Path) -> None:
    target = tmp_path / "classify.json"
    words = ["classify", "--quick", "--rounds", "100", "--peers", "none", "-o", str(target)]
    started = subprocess.Popen([*HFX, "perf", "scenario", *words], stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    next(line for line in started.stderr if "100 rounds" in line)
    time.sleep(1.5)  # a round takes less
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 0, said
    result = read_result(target)
    assert result.details["stopped"] is True and 0 < len(result.runs) < 100
