"""Precisions of one checkpoint: exported with the settings of the published one, or rejected by the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.errors import ModelMissing, UsageError
from hfx.exporter.generation.steps import STEPS
from hfx.perf.compare.candidates import CompareSpec, Session
from hfx.perf.compare.kinds import precision_candidates
from hfx.perf.settings import current
from hfx.repository.catalog import model
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = pytest.mark.slow
NAME = "writer"
UNGATED = [step for step in STEPS if not step.gate]  # of what is published before: the candidates are what is compared


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "gpt2"
    generator_checkpoints.save(folder, "gpt2", {"max_new_tokens": 12})
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_checkpoint(checkpoint, folder, UNGATED, name=NAME, slots=5)
    return folder


def candidates(
    repository: Path, folder: Path, *precisions: str, name: str = NAME, **more: Any
) -> tuple[list[str], list[str], list[str]]:
    """Return the labels of the candidates, the notes, and the printed lines."""
    notes, said, spec = list[str](), list[str](), CompareSpec(name, "precisions", (), repository, **more)
    found = precision_candidates(spec, precisions, folder, notes, Session(say=said.append))
    return [each.label for each in found], notes, said


@pytest.mark.usefixtures("few_texts")
def test_a_precision_that_fails_the_gate_is_a_note(repository: Path, checkpoint: Path, tmp_path: Path) -> None:
    of_folder = {"checkpoint": str(checkpoint)}
    labels, notes, said = candidates(repository, tmp_path, "fp32", "int8", max_drop=0.0, **of_folder)
    assert labels == ["fp32"]
    assert len(notes) == 1 and notes[0].startswith("int8 was not run: ") and "token agreement" in notes[0]
    assert not (tmp_path / "fp32").exists(), "what is published is not exported again"
    assert any(line.startswith("int8: ") for line in said)

    labels, _, _ = candidates(repository, tmp_path, "int8", "fp32", max_drop=1.0, **of_folder)
    assert labels == ["int8", "fp32"]
    assert current(tmp_path / "int8", model(tmp_path / "int8", NAME))["slots"] == 5


@pytest.mark.usefixtures("least_texts")
@pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here")
def test_a_runtime_of_int8_alone_is_not_asked_for_in_others(checkpoint: Path, tmp_path: Path) -> None:
    options = {"precision": "int8", "cpu_runtime": "native"}
    export_checkpoint(checkpoint, tmp_path / "r", UNGATED, name=NAME, **options)
    labels, notes, _ = candidates(tmp_path / "r", tmp_path / "made", "int8", "fp32", checkpoint=str(checkpoint))
    assert labels == ["int8", "fp32"], notes
    assert model(tmp_path / "made/fp32", NAME).choices["cpu_runtime"]["requested"] == "auto"  # type: ignore[index,call-overload]


def test_a_checkpoint_that_is_not_here_is_said_before_any_work(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"was exported from the folder 'gpt2', which does not exist here"):
        candidates(repository, tmp_path, "fp32", "int8")
    with pytest.raises(ModelMissing):
        candidates(repository, tmp_path, "fp32", name="missing")


def test_published_models_need_no_checkpoint(repository: Path, tmp_path: Path) -> None:
    assert candidates(repository, tmp_path, "fp32", NAME)[0] == ["fp32", NAME]


def test_a_name_that_is_neither_a_precision_nor_a_model_is_refused_before_any_work(
    repository: Path, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"names 'foo', which is no precision \(fp32, .*\) and no model") as refused:
        candidates(repository, tmp_path, "int8", "foo", checkpoint=str(checkpoint))
    assert NAME in refused.value.fix and not [*tmp_path.iterdir()]
