"""`hfx export --again` exports a published model again with the options of its last export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.repository.config_pbtxt import made_by
from tests.rigs.checkpoints import tiny_checkpoints


def test_a_model_is_replaced_by_the_same_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert("ForSequenceClassification"))
    options = ["--device", "cpu", "--cpu-runtime", "onnxruntime", "--max-batch-size", "8", "--max-length", "16"]
    words = ["export", "tiny", "--name", "m", *options]
    monkeypatch.setattr("sys.argv", ["hfx", *words])  # what generated files quote
    assert main(words) == 0
    config = tmp_path / "model_repository/m/config.pbtxt"
    manifest, text = json.loads((tmp_path / "model_repository/m/hfx.json").read_text()), config.read_text()
    for again in (["export", "--again", "m"], ["export", "other/tiny", "--again", "m"]):
        assert main([*again, "--json"]) == 0
        json.loads(capsys.readouterr().out.splitlines()[-1])
        found = json.loads((tmp_path / "model_repository/m/hfx.json").read_text())
        assert config.read_text() == text and found["files"] == manifest["files"]
        if (tmp_path / "tiny").exists():
            (tmp_path / "other").mkdir()
            (tmp_path / "tiny").rename(tmp_path / "other/tiny")
    assert made_by(text) == "hfx export " + " ".join(words[1:])
    for refused, reason in (
        (["--again", "m"], "was exported from a folder 'tiny', which is not here"),
        (["other/tiny", "--again", "m", "--precision", "int8"], "not --precision"),
        (["other/tiny", "--again", "n"], "has no model 'n'"),
        ([], "Give MODEL or --again"),
    ):
        assert main(["export", *refused]) in (2, 3)
        assert reason in capsys.readouterr().err
    config.write_text(text.replace("hfx export", "hfx perf compare"))
    assert main(["export", "other/tiny", "--again", "m"]) == 2
    assert "`hfx export MODEL`" in capsys.readouterr().err


def test_another_checkpoint_of_the_same_folder_name_does_not_replace_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert())
    options = ["--device", "cpu", "--cpu-runtime", "onnxruntime", "--max-batch-size", "4", "--max-length", "16"]
    words = ["export", "tiny", "--name", "m", *options]
    monkeypatch.setattr("sys.argv", ["hfx", *words])
    assert main(words) == 0
    published = (tmp_path / "model_repository/m/hfx.json").read_bytes()
    first = json.loads(published)["source"]["sha256"]
    tiny_checkpoints.save(tmp_path / "tiny", tiny_checkpoints.bert(seed=1))
    tiny_checkpoints.save(tmp_path / "other/tiny", tiny_checkpoints.bert(seed=1))
    capsys.readouterr()
    for again in (["export", "--again", "m"], ["export", "other/tiny", "--again", "m"]):
        assert main(again) == 2
        printed = capsys.readouterr().err
        assert first[:12] in printed and "--force" in printed
        assert (tmp_path / "model_repository/m/hfx.json").read_bytes() == published
    assert main([*words, "--force"]) == 0
    assert json.loads((tmp_path / "model_repository/m/hfx.json").read_text())["source"]["sha256"] != first
