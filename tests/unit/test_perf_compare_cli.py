"""`hfx perf compare` on the command line: wrong use gets one clear line, and files are merged and priced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.perf.results import read_result, write_result
from tests.unit.perf_runs import MACHINE, result, run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m"], "What is to be compared?"),
        (["m", "--devices", "cpu,gpu", "--precisions", "int8"], "--devices and --precisions exclude each other."),
        (["m", "n", "--devices", "cpu"], "One model at a time, not m n."),
        (["a.json"], "One file has nothing to be compared with."),
        (["a.json", "m"], "Result files are compared with result files."),
        (["a.json", "b.json", "--devices", "cpu"], "Result files are compared with result files."),
        (["a.json", "b.json"], "a.json can't be read: No such file or directory."),
        (["m", "--devices", "cpu,tpu"], "--devices 'cpu,tpu' can't be compared."),
        (["m", "--devices", "cpu", "--price", "cpu=free"], "--price 'cpu=free' is no price of an hour."),
        (["m", "--devices", "cpu", "--price", "tpu=1/h"], "--price names 'tpu', which is not compared."),
        (["m", "--precisions", "fp32,int8", "--price", "int4=1/h"], "--price names 'int4', which is not compared."),
        (["m", "--devices", "cpu", "--checkpoint", "x"], "--checkpoint is about --precisions."),
        (["m", "--devices", "cpu", "--max-drop", "0.1"], "--max-drop is about --precisions."),
        (["m", "--target", "cpu"], "--target 'cpu' is no server."),
        (["m", "--variants", "instances=1"], "--variants makes 1 variants."),
        (["m", "--devices", "cpu", "--output", "/nowhere/x.json"], "/nowhere/x.json can't be written"),
    ],
)
def test_wrong_use_is_refused_with_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["perf", "compare", *words]) == 2
    output = capsys.readouterr()
    assert f"Error: {said}" in output.err and output.out == ""


def test_a_model_that_there_is_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "model_repository").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["perf", "compare", "m", "--devices", "cpu,gpu"]) == 3
    assert "There is no model 'm'" in capsys.readouterr().err


def files(folder: Path) -> list[str]:
    cpu = result(run("m", 10.0, device="cpu"), run("m", 5.0, callers=2, device="cpu"))
    gpu = result(run("m", 100.0, device="gpu"), machine=replace(MACHINE, gpus=("H200",)))
    write_result(cpu, folder / "one.json")
    write_result(gpu, folder / "two.json")
    return [str(folder / "one.json"), str(folder / "two.json")]


def test_files_of_two_machines_become_one_table_with_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--price", "cpu=$1/h", "--price", "gpu=$4/h", "--output", str(tmp_path / "both.json")]
    assert main(["perf", "compare", *files(tmp_path), *words]) == 0
    output = capsys.readouterr().out
    assert output.startswith("two holds 100 requests/s with 1 caller, 10.0× that of one under the same load.")
    assert "two is cheaper than one above 40 requests/s." in output
    merged = read_result(tmp_path / "both.json")
    assert [each.subject.label for each in merged.runs] == ["one", "one", "two"]
    assert merged.base == "one" and merged.runs[0].cost and merged.runs[0].cost.currency == "$"


def test_json_is_the_result_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["perf", "compare", *files(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "compare"
