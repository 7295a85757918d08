"""Adapters and heads that don't fit their backbone are refused by names, shapes and config.json, before any export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported, SourceError
from hfx.exporter.adapters.export import read_set
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint, open_checkpoint
from tests.unit.exporter.adapters.adapters import (
    CONFIGS,
    LABELS,
    SEQ_CLS,
    SHAPE,
    WIDE,
    edit_tensors,
    save_adapter,
    save_backbone,
)

MODERN = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
TARGETS = {"bert": "query", "modernbert": "Wqkv"}
# Fields of config.json by which the same weights compute something else, with other values than the backbone's.
OTHERS: list[tuple[str, str, Any]] = [
    ("bert", "hidden_act", "relu"),
    ("bert", "layer_norm_eps", 1e-3),
    ("bert", "num_attention_heads", 4),
    ("bert", "is_decoder", True),
    ("bert", "model_type", "electra"),
    ("bert", "a_later_field", 2),
    ("modernbert", "classifier_pooling", "mean"),
    ("modernbert", "classifier_activation", "relu"),
    ("modernbert", "local_attention", 4),
    ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 5.0}}),
    ("modernbert", "pad_token_id", 1),
]
HARMLESS: list[tuple[str, Any]] = [
    ("transformers_version", "4.40.0"),
    ("_name_or_path", "elsewhere"),
    ("torch_dtype", "float16"),
    ("dtype", "bfloat16"),
    ("use_cache", False),
    ("architectures", None),
    ("hidden_dropout_prob", 0.3),
    ("classifier_dropout", 0.3),
    ("initializer_range", 1.0),
    ("problem_type", "multi_label_classification"),
    ("finetuning_task", "sst-2"),
    ("gradient_checkpointing", True),
]


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    """Classifiers, whose heads are stored."""
    root = tmp_path_factory.mktemp("backbones")
    configs = {"bert": CONFIGS["bert"](), "modernbert": transformers.ModernBertConfig(**SHAPE, **WIDE, **MODERN)}
    for config in configs.values():
        config.num_labels = LABELS
    return {name: save_backbone(root / name, name, SEQ_CLS.from_config(config)) for name, config in configs.items()}


def save_head(folder: Path, backbone: Checkpoint) -> Path:
    model = SEQ_CLS.from_pretrained(backbone.view)
    torch.nn.init.normal_(model.classifier.weight)
    return save_backbone(folder, backbone.model_type, model).folder


@pytest.fixture(scope="module")
def saved(backbones: dict[str, Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of the backbones, with their config.json, and a head of BERT."""
    root = tmp_path_factory.mktemp("adapters")
    for family, target in TARGETS.items():
        adapted = save_adapter(root / family, backbones[family], task_type="SEQ_CLS", target_modules=[target])
        adapted.config.save_pretrained(root / family)
    save_head(root / "head", backbones["bert"])
    return {name: root / name for name in (*TARGETS, "head")}


def copied(saved: Path, folder: Path, **fields: Any) -> Path:
    """Copy an adapter, and change fields of the config.json beside it."""
    shutil.copytree(saved, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def read(backbone: Checkpoint, folder: Path) -> None:
    read_set(backbone, {"adapter": folder}, ExportOptions(repository=folder.parent / "repository"))


@pytest.mark.parametrize(("family", "field", "value"), OTHERS)
def test_an_adapter_whose_config_computes_something_else_is_refused_by_field_and_values(
    family: str, field: str, value: Any, backbones: dict[str, Checkpoint], saved: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointUnsupported) as refused:
        read(backbones[family], copied(saved[family], tmp_path / "adapter", **{field: value}))
    own = backbones[family].config.get(field)
    assert f"config.json: {field} is " in refused.value.message
    if not isinstance(value, dict):
        assert f"{field} is {value}, and {own} in the backbone's" in refused.value.message


@pytest.mark.parametrize(("field", "value"), HARMLESS)
@pytest.mark.parametrize("name", ["bert", "head"])
def test_fields_that_change_no_answer_may_differ(
    name: str, field: str, value: Any, backbones: dict[str, Checkpoint], saved: dict[str, Path], tmp_path: Path
) -> None:
    architecture = {"architectures": ["BertForSequenceClassification"]} if field == "architectures" else {}
    read(backbones["bert"], copied(saved[name], tmp_path / "adapter", **{field: value} | architecture))


def test_a_head_whose_config_computes_something_else_is_refused(
    backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    head = save_head(tmp_path / "head", backbones["modernbert"])
    with pytest.raises(CheckpointUnsupported, match="classifier_pooling is mean, and cls"):
        read(backbones["modernbert"], copied(head, tmp_path / "adapter", classifier_pooling="mean"))


@pytest.mark.parametrize(
    ("family", "former"),
    [
        ("bert", {"position_embedding_type": "absolute", "gradient_checkpointing": False}),
        ("modernbert", {"global_rope_theta": 9000.0, "local_rope_theta": 500.0, "reference_compile": None}),
    ],
)
def test_a_config_that_a_later_version_has_saved_again_is_taken(
    family: str, former: dict[str, Any], tmp_path: Path, backbones: dict[str, Checkpoint]
) -> None:
    folder = tmp_path / "backbone"
    shutil.copytree(backbones[family].folder, folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("rope_parameters", "layer_types", "dtype"):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config | former | {"transformers_version": "4.48.0"}))
    backbone = open_checkpoint(str(folder))
    adapted = save_adapter(tmp_path / "one", backbone, task_type="SEQ_CLS", target_modules=[TARGETS[family]])
    adapted.config.save_pretrained(tmp_path / "one")
    read(backbone, tmp_path / "one")


def narrower(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:, 1:].contiguous() if "lora_A" in name else value for name, value in tensors.items()}


def deeper(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("layer.1.", "layer.9."): value for name, value in tensors.items()}


def wider_head(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.ones(3, 40) if name.endswith("classifier.weight") else value for name, value in tensors.items()}


def uneven_head(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.ones(4) if name.endswith("classifier.bias") else value for name, value in tensors.items()}


def many(count: int) -> dict[str, Any]:
    return {"id2label": {str(index): f"label {index}" for index in range(count)}, "label2id": None}


@pytest.mark.parametrize(
    ("reason", "change", "fields"),
    [
        ("has [32, 31] for bert.encoder.layer.0", narrower, {}),
        ("changes bert.encoder.layer.9.attention.self.query.weight", deeper, {}),
        ("has [3, 40] for classifier.weight", wider_head, {}),
        ("different numbers of rows for classifier.bias and classifier.weight", uneven_head, {}),
        ("names 10 labels, and the head in adapter_model.safetensors has 3", None, many(10)),
        ("names 300000 labels", None, many(300_000)),
        ("names 10 labels", None, {"id2label": None, "num_labels": 10}),
    ],
)
def test_an_adapter_that_does_not_fit_stops_the_set_before_its_export(
    reason: str,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None,
    fields: dict[str, Any],
    backbones: dict[str, Checkpoint],
    saved: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = copied(saved["bert"], tmp_path / "adapter", **fields)
    if change:
        edit_tensors(folder, change)
    folders = {"good": saved["bert"], "bad": folder}
    with pytest.raises(CheckpointCorrupt) as refused:
        read_set(backbones["bert"], folders, ExportOptions(repository=tmp_path / "repository"))
    assert reason in refused.value.message and str(folder) in refused.value.message


@pytest.mark.parametrize("fields", [many(10), {"id2label": None, "num_labels": 10}, {"id2label": None}])
def test_a_head_with_another_number_of_labels_is_refused(
    fields: dict[str, Any], backbones: dict[str, Checkpoint], saved: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="labels, and the head in"):
        read(backbones["bert"], copied(saved["head"], tmp_path / "head", **fields))
