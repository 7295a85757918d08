"""`hfx perf compare` from the command line to the result file, on a real Triton; and Ctrl-C in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.perf.results import read_result
from hfx.perf.server import gpus
from hfx.repository.staging import stagings
from tests.published import export_zoo

pytestmark = pytest.mark.triton
NAME = "sentiment"
SHORT = ["--requests", "20", "--warmup", "2", "--words", "fixed:6"]
PATIENCE = 60.0


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    export_zoo("sentiment-distilbert", folder, NAME, "fp32", "onnxruntime")
    return folder


@pytest.mark.skipif(bool(gpus.look()), reason="there is a GPU here")
def test_devices_from_options_to_the_result_file(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["perf", "compare", NAME, "--devices", "cpu,gpu", "--repository", str(published), "--concurrency", "1,2"]
    output = tmp_path / "r.json"
    more = ["--rounds", "2", "--slo", "latency<5s", "--price", "cpu=0.36/h", "--price", "gpu=4/h"]
    assert main([*words, *SHORT, *more, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert "Starting cpu" in said.err
    assert "gpu was not run: sentiment was not built for GPU" in said.out
    assert "At its best" in said.out and "per 1k requests" in said.out
    result = read_result(output)
    assert (result.kind, result.base) == ("compare", "cpu")
    assert [run.subject.device for run in result.runs] == ["cpu"] * 4
    assert all(run.goodput == 1.0 and run.cost and run.cost.price_per_hour == 0.36 for run in result.runs)
    assert "break even" not in result.details, "there is no number for what was not run"


def test_nothing_measured_exits_with_5_and_says_why(published: Path, capsys: pytest.CaptureFixture[str]):
    words = ["perf", "compare", NAME, "--devices", "gpu", "--repository", str(published), *SHORT, "--json"]
    assert main(words) == 5
    said = json.loads(capsys.readouterr().out)
    assert said["error"]["type"] == "LoadFailed" and "not built for GPU" in said["error"]["message"]


def test_ctrl_c_leaves_a_valid_result_and_no_server(published: Path, tmp_path: Path):
    output = tmp_path / "r.json"
    command = [
        sys.executable, "-c", "import sys; from hfx.cli import main; sys.exit(main())",
        "perf", "compare", NAME, "--variants", "instances=1,2", "--repository", str(published),
        "--duration", "60s", "--warmup", "0", "--output", str(output),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr
        deadline = time.monotonic() + PATIENCE
        for line in process.stderr:
            assert time.monotonic() < deadline
            if "round 1" in line:
                break
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    result = read_result(output)
    assert [run.interrupted for run in result.runs] == [True]
    assert result.runs[0].requests.succeeded > 0
    assert result.notes[0].startswith("Interrupted")
    assert "interrupted" in out
    assert stagings(published) == []
