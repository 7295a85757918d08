"""Precisions of one checkpoint: exported beside the published one with its settings, or kept out by the gate."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import ModelMissing, UsageError
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.perf.compare.candidates import CompareSpec, Session
from hfx.perf.compare.precisions import precision_candidates
from hfx.perf.tuning.settings import current
from hfx.repository.catalog import model
from tests.unit import writing_checkpoints

pytestmark = pytest.mark.slow
NAME = "writer"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "gpt2"
    writing_checkpoints.save(folder, "gpt2", {"max_new_tokens": 12})
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    options = ExportOptions(
        name=NAME, precision="fp32", device="cpu", cpu_runtime="onnxruntime", repository=folder, slots=5
    )
    export(make_plan(open_checkpoint(str(checkpoint)), options), lambda title: nullcontext())
    return folder


def spec(repository: Path, name: str, **more: Any) -> CompareSpec:
    return CompareSpec(name, "precisions", (), repository, **more)


def test_what_the_gate_keeps_out_is_a_note_and_the_others_are_exported_alike(
    repository: Path, checkpoint: Path, tmp_path: Path
):
    notes: list[str] = []
    said: list[str] = []
    source = spec(repository, NAME, checkpoint=str(checkpoint), max_drop=0.0)
    session = Session(say=said.append)
    found = precision_candidates(source, ("fp32", "int4"), tmp_path, notes, session)
    assert [each.label for each in found] == ["fp32"]
    assert len(notes) == 1 and notes[0].startswith("int4 was not run: ") and "token agreement" in notes[0]
    assert not (tmp_path / "fp32").exists(), "what is published is not exported again"
    assert any(line.startswith("int4: ") for line in said)

    kept = spec(repository, NAME, checkpoint=str(checkpoint), max_drop=1.0)
    found = precision_candidates(kept, ("int8", "fp32"), tmp_path, notes, session)
    assert [each.label for each in found] == ["int8", "fp32"]
    exported = model(tmp_path / "int8", NAME)
    assert current(tmp_path / "int8", exported)["slots"] == 5


def test_a_checkpoint_that_is_not_here_is_said_before_any_work(repository: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"came of a folder 'gpt2', which is not here"):
        precision_candidates(spec(repository, NAME), ("fp32", "int8"), tmp_path, [], Session())
    with pytest.raises(ModelMissing):
        precision_candidates(spec(repository, "nobody"), ("fp32",), tmp_path, [], Session())


def test_published_models_need_no_checkpoint(repository: Path, tmp_path: Path):
    notes: list[str] = []
    found = precision_candidates(spec(repository, NAME), ("fp32", NAME, "other"), tmp_path, notes, Session())
    assert [each.label for each in found] == ["fp32", NAME]
    assert notes[0].startswith("other was not run: There is no model 'other'")
