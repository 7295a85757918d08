"""An encoder in this process: every request has an answer, or a refusal with the reason."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from hfx.errors import RequestRefused
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export, make_plan, without_gate
from hfx.exporter.source import open_checkpoint
from hfx.local.encoder import LocalModel
from tests.rigs.checkpoints import tiny_checkpoints


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = tmp_path_factory.mktemp("zero-shot")
    labels = {0: "entailment", 1: "neutral", 2: "contradiction"}
    bert = tiny_checkpoints.bert(id2label=labels, label2id={name: at for at, name in labels.items()})
    checkpoint = open_checkpoint(str(tiny_checkpoints.save(folder / "checkpoint", bert)))
    task: Any = {"task": "zero-shot-classification", "device": "cpu", "cpu_runtime": "onnxruntime"}
    plan = make_plan(checkpoint, ExportOptions(repository=folder / "repository", name="m", **task))
    export(plan, lambda title: nullcontext(), without_gate(plan))
    return LocalModel.open(folder / "repository", "m")


GOOD = {"text_input": "a cat", "candidate_labels": ["dog", "film"]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text_input": "half \ud83d of a pair"}, "surrogate"),
        ({"candidate_labels": ["dog", "\udfff"]}, "surrogate"),
        ({"text_input": None}, "not a string"),
        ({"text_input": 3}, "text_input is no text"),
        ({"candidate_labels": []}, "candidate_labels is empty"),
        ({"candidate_labels": True}, "candidate_labels is no text"),
    ],
)
def test_a_request_that_can_not_be_read_is_refused_alone(
    model: LocalModel, changes: dict[str, Any], reason: str
) -> None:
    answer, refusal = model.answer_each([GOOD, GOOD | changes])
    assert answer == model.infer(GOOD)
    assert isinstance(refusal, RequestRefused) and reason in refusal.message


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_input_is_named(model: LocalModel, name: str) -> None:
    with pytest.raises(RequestRefused, match=f"{name} is missing"):
        model.infer({key: value for key, value in GOOD.items() if key != name})
