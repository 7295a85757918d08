"""A head is a checkpoint with the backbone's tensors: they are compared by value, whatever class saved them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hfx.errors import CheckpointUnsupported
from hfx.exporter.adapters.head import read_head
from hfx.exporter.adapters.merge import task_of
from hfx.exporter.source import Checkpoint
from tests.unit.exporter.adapters.adapters import LABELS, save_backbone

CLASSES = {
    "bare": "AutoModel",
    "masked": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
}


@pytest.fixture(params=["bare", "masked", "classifier"])
def backbone(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    """A BERT saved from different classes: bare, and with names that have a prefix."""
    return derived(tmp_path / "backbone", save_backbone(tmp_path / "first", "bert"), request.param)


def derived(folder: Path, origin: Checkpoint, kind: str, change: Callable[[Any], None] | None = None) -> Checkpoint:
    """Save the base model of `origin` from another class, with random values elsewhere."""
    labels = {"num_labels": LABELS} if kind in ("classifier", "tokens") else {}
    model = getattr(transformers, CLASSES[kind]).from_pretrained(origin.view, **labels)
    if change:
        change(model)
    return save_backbone(folder, "bert", model)


@pytest.mark.parametrize(("kind", "task_type"), [("classifier", "SEQ_CLS"), ("tokens", "TOKEN_CLS")])
def test_a_head_has_the_parameters_that_the_backbone_has_not(
    kind: str, task_type: str, backbone: Checkpoint, tmp_path: Path
) -> None:
    checkpoint = derived(tmp_path / "head", backbone, kind)
    head = read_head("one", checkpoint.folder, backbone)
    assert (head.name, head.task_type, task_of(head), head.products) == ("one", task_type, task_type, {})
    own = {"classifier.bias", "classifier.weight"}
    if kind == "classifier" and backbone.architecture == "BertForMaskedLM":  # which has no pooler
        own |= {"bert.pooler.dense.bias", "bert.pooler.dense.weight"}
    assert head.saved.keys() == own
    assert head.saved["classifier.weight"].shape == (LABELS, 32)


def test_a_checkpoint_with_another_backbone_is_refused_by_count_and_tensor(
    backbone: Checkpoint, tmp_path: Path
) -> None:
    def train(model: Any) -> None:
        with torch.no_grad():
            model.bert.encoder.layer[1].output.dense.bias[3] += 1e-6

    checkpoint = derived(tmp_path / "head", backbone, "classifier", train)
    with pytest.raises(CheckpointUnsupported, match=r": 1 of 3\d tensors.*encoder\.layer\.1\.output\.dense\.bi"):
        read_head("one", checkpoint.folder, backbone)


def test_other_settings_with_equal_tensors_are_refused(tmp_path: Path) -> None:
    backbone = save_backbone(tmp_path / "backbone", "bert")

    def change(model: Any) -> None:
        model.config.hidden_act = "relu"

    checkpoint = derived(tmp_path / "head", backbone, "classifier", change)
    with pytest.raises(CheckpointUnsupported, match="hidden_act is relu, and gelu"):
        read_head("one", checkpoint.folder, backbone)


def test_another_family_is_refused(tmp_path: Path) -> None:
    head = save_backbone(tmp_path / "head", "distilbert")
    with pytest.raises(CheckpointUnsupported, match="model_type is distilbert, and bert"):
        read_head("one", head.folder, save_backbone(tmp_path / "backbone", "bert"))


def test_a_backbone_without_the_tensors_of_its_family_is_refused(tmp_path: Path) -> None:
    backbone = save_backbone(tmp_path / "backbone", "bert")
    head = derived(tmp_path / "head", backbone, "classifier")
    file = backbone.folder / "model.safetensors"
    save_file({f"other.{name}": tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointUnsupported, match="lacks 37 tensors"):
        read_head("one", head.folder, backbone)
