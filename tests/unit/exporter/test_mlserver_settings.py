"""`hfx export --from model-settings.json` makes the plan of the command that it prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hfx.cli import main
from hfx.errors import UsageError
from hfx.exporter.mlserver_settings import read_settings
from tests import zoo

RUNTIME = "mlserver_huggingface.HuggingFaceRuntime"


def settings(folder: Path, extra: Any = None, **more: Any) -> Path:
    """Write a model-settings.json with `extra` and other members."""
    path = folder / "model-settings.json"
    body = {"name": "transformer", "implementation": RUNTIME, "parameters": {"extra": extra}, **more}
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_plan_is_that_of_the_command_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "weights").symlink_to(zoo.checkpoint("sentiment-distilbert"))
    extra = {"task": "sentiment-analysis", "optimum_model": True, "device": -1, "batch_sise": 4}
    path = settings(
        tmp_path, name="My Model", max_batch_size=8, parallel_workers=2, parameters={"uri": "weights", "extra": extra}
    )
    assert main(["export", "--from", str(path), "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert (plan["name"], plan["task"], plan["precision"]["gpu"]) == ("my-model", "text-classification", None)
    for word in ("parallel_workers", "parameters.extra.batch_sise", "'my-model'"):
        assert word in err
    [command] = [line for line in err.splitlines() if line.startswith("hfx export")]
    assert main([*shlex.split(command)[1:], "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan


@pytest.mark.slow
def test_options_of_the_command_line_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = settings(tmp_path, {"task": "text-generation", "pretrained_model": str(zoo.checkpoint("stories-gpt2"))})
    words = ["--name", "stories", "--device", "both", "--precision", "int8", "--dry-run", "--json"]
    assert main(["export", "--from", str(path), *words]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert (plan["name"], plan["precision"]) == ("stories", {"cpu": "int8", "gpu": "fp16"})
    assert "--name stories" in err and "--device both" in err and "transformer" not in err


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"pretrained_model": "a", "pretrained_tokenizer": "b"}, "pretrained_tokenizer"),
        ({"pretrained_model": "a", "model_kwargs": {"load_in_8bit": True}}, "load_in_8bit"),
        ({"pretrained_model": "a", "framework": "tf"}, "framework"),
        ({"pretrained_model": "a", "device": "mps"}, "device"),
        ({"task": "ner"}, "pretrained_model"),
        ({"pretrained_model": ["a"]}, "pretrained_model"),
        (["a"], "extra"),
    ],
)
def test_what_would_change_the_answers_or_can_not_be_read_is_refused_by_name(
    tmp_path: Path, extra: Any, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        read_settings(settings(tmp_path, extra))


def test_other_runtimes_and_damaged_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="SKLearnModel"):
        read_settings(settings(tmp_path, {}, implementation="mlserver_sklearn.SKLearnModel"))
    path = tmp_path / "model-settings.json"
    path.write_text("{", encoding="utf-8")
    assert main(["export", "--from", str(path)]) == 2
    assert main(["export", "gpt2", "--from", str(path)]) == 2
    assert main(["export"]) == 2
    assert "--from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "options", "warned"),
    [
        ({"device": 1}, {"name": "transformer", "device": "gpu"}, ""),
        ({"device": "cuda:0"}, {"name": "transformer", "device": "gpu"}, ""),
        (
            {"task": "translation", "task_suffix": "_en_to_fr"},
            {"name": "transformer", "task": "translation", "device": "cpu"},
            "target_lang 'fr'",
        ),
        (
            {"task": "summarization"},
            {"name": "transformer", "task": "summarization", "device": "cpu"},
            "max_batch_size is left out",
        ),
    ],
)
def test_devices_languages_and_batches_have_counterparts(
    tmp_path: Path, extra: dict[str, Any], options: dict[str, Any], warned: str
) -> None:
    rows = {"max_batch_size": 16} if "max_batch" in warned else {}
    migrated = read_settings(settings(tmp_path, {"pretrained_model": "org/name", **extra}, **rows))
    assert (migrated.model, migrated.options) == ("org/name", options)
    assert warned in "".join(migrated.warnings)
