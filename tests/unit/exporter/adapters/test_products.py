"""The products of an adapter equal what peft merges, and the merged checkpoint answers like peft's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.adapters.folder import find_adapters, read_adapter
from hfx.exporter.adapters.merge import merged_checkpoint
from hfx.exporter.load import load_model
from hfx.exporter.source import Checkpoint, open_checkpoint
from tests.unit.exporter.adapters.adapters import (
    CONFIGS,
    LABELS,
    SEQ_CLS,
    edit_fields,
    edit_tensors,
    save_adapter,
    save_backbone,
)

Q, V = "distilbert.transformer.layer.0.attention.q_lin", "distilbert.transformer.layer.1.attention.v_lin"
SETTINGS: dict[str, dict[str, Any]] = {
    "two linears": {"target_modules": ["q_lin", "v_lin"]},
    "rslora": {"target_modules": ["q_lin", "v_lin"], "use_rslora": True},
    "float alpha": {"target_modules": ["lin1"], "lora_alpha": 5.5},
    "initial values": {"target_modules": ["lin1"], "init_lora_weights": "orthogonal"},
    "names as patterns": {
        "target_modules": ["q_lin", "v_lin"],
        "rank_pattern": {"q_lin": 2, "layer.1.attention.v_lin": 3},
        "alpha_pattern": {"v_lin": 32, "layer.0.attention.q_lin": 1},
    },
    "regular expressions": {
        "target_modules": r".*\.(q_lin|lin[12])",
        "rank_pattern": {r"^distilbert.*layer\.0.*lin": 2, r"layer\.[01]\.ffn\.(lin1|nothing)": 3},
        "alpha_pattern": {r"(layer\.1)\..*q_lin": 32, "layer.0.attention.q_lin": 2, r"lin\d": 5},
        "use_rslora": True,
    },
    "layers": {"target_modules": ["q_lin"], "layers_to_transform": [1], "layers_pattern": "layer"},
    "excluded": {"target_modules": "all-linear", "exclude_modules": r".*(classifier|lin2)"},
}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    return {family: save_backbone(tmp_path_factory.mktemp(family), family) for family in CONFIGS}


@pytest.mark.parametrize("fields", SETTINGS.values(), ids=SETTINGS.keys())
def test_products_equal_the_changes_that_peft_merges(
    fields: dict[str, Any], backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    adapted = save_adapter(tmp_path / "one", backbones["distilbert"], task_type="SEQ_CLS", **fields)
    before = {name: tensor.clone() for name, tensor in base_weights(adapted).items()}
    adapter = read_adapter("one", tmp_path / "one")
    merged_checkpoint(backbones["distilbert"], adapter, tmp_path / "merged")
    ours = load_model(open_checkpoint(str(tmp_path / "merged")), SEQ_CLS.__name__, False).state_dict()
    merged = adapted.merge_and_unload().state_dict()
    changed = [name for name in before if not torch.equal(before[name], merged[name])]
    assert sorted(f"{name}.weight" for name in adapter.products) == sorted(changed)
    for name, product in adapter.products.items():
        sum_ = before[f"{name}.weight"].numpy() + product.b @ product.a
        np.testing.assert_allclose(sum_, merged[f"{name}.weight"].numpy(), rtol=0, atol=1e-6)
    for name, value in adapter.saved.items():
        np.testing.assert_array_equal(value, merged[name].numpy())
    assert ours.keys() == merged.keys()
    for name, tensor in merged.items():
        np.testing.assert_array_equal(ours[name].numpy(), tensor.numpy(), err_msg=name)


def base_weights(adapted: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the backbone under the names of the model without peft."""
    state = adapted.get_base_model().state_dict()
    return {name.replace(".base_layer", ""): tensor for name, tensor in state.items() if ".base_layer." in name}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_merged_checkpoint_answers_like_the_model_of_peft(
    family: str, backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    adapted = save_adapter(tmp_path / "one", backbones[family], task_type="SEQ_CLS", target_modules=["query", "dense"])
    labels = {index: f"name {index}" for index in range(LABELS)}
    adapted.config.id2label, adapted.config.problem_type = labels, "multi_label_classification"
    adapted.config.save_pretrained(tmp_path / "one")
    adapter = read_adapter("one", tmp_path / "one")
    merged_checkpoint(backbones[family], adapter, tmp_path / "merged")
    merged = open_checkpoint(str(tmp_path / "merged"))
    ours = load_model(merged, SEQ_CLS.__name__, headless=False)
    ids = torch.tensor([[2, 7, 9, 3], [2, 11, 30, 3]])
    with torch.no_grad():
        expected, answer = adapted(input_ids=ids).logits, ours(input_ids=ids).logits
    np.testing.assert_allclose(answer.numpy(), expected.numpy(), rtol=0, atol=1e-5)  # sums in another order
    assert (merged.config["problem_type"], ours.config.id2label) == ("multi_label_classification", labels)
    assert (merged.folder / "vocab.txt").read_bytes() == (backbones[family].folder / "vocab.txt").read_bytes()


def test_an_embedding_adapter_keeps_the_paths_of_the_bare_model(
    backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    fields = {"task_type": "FEATURE_EXTRACTION", "target_modules": ["q_lin"]}
    adapted = save_adapter(tmp_path / "one", backbones["distilbert"], transformers.AutoModel, **fields)
    adapter = read_adapter("one", tmp_path / "one")
    assert sorted(adapter.products) == [f"transformer.layer.{layer}.attention.q_lin" for layer in range(2)]
    merged_checkpoint(backbones["distilbert"], adapter, tmp_path / "merged")
    ours = load_model(open_checkpoint(str(tmp_path / "merged")), "AutoModel", headless=True)
    ids = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        expected, answer = adapted(input_ids=ids).last_hidden_state, ours(input_ids=ids).last_hidden_state
    np.testing.assert_allclose(answer.numpy(), expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted(kind: torch.dtype, backbones: dict[str, Checkpoint], tmp_path: Path) -> None:
    save_adapter(tmp_path / "one", backbones["distilbert"], task_type="SEQ_CLS", target_modules=["q_lin"], lora_alpha=4)
    edit_tensors(tmp_path / "one", lambda tensors: {name: value.to(kind) for name, value in tensors.items()})
    adapter = read_adapter("one", tmp_path / "one")
    assert {array.dtype for array in adapter.saved.values()} == {np.dtype(np.float32)}
    merged_checkpoint(backbones["distilbert"], adapter, tmp_path / "merged")
    merged = load_model(open_checkpoint(str(tmp_path / "merged")), SEQ_CLS.__name__, headless=False).state_dict()
    base = transformers.AutoModel.from_pretrained(backbones["distilbert"].view).state_dict()
    for name, product in adapter.products.items():
        before = base[f"{name.removeprefix('distilbert.')}.weight"].numpy()
        np.testing.assert_allclose(before + product.b @ product.a, merged[f"{name}.weight"].numpy(), rtol=0, atol=1e-6)


def test_the_names_of_a_raw_state_dict_are_those_of_save_pretrained(
    backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    save_adapter(tmp_path / "one", backbones["distilbert"], task_type="SEQ_CLS", target_modules=["q_lin"])
    saved = sorted(read_adapter("one", tmp_path / "one").saved)
    edit_tensors(
        tmp_path / "one",
        lambda tensors: {
            name.replace("classifier.", "classifier.modules_to_save.default."): value for name, value in tensors.items()
        },
    )
    assert sorted(read_adapter("one", tmp_path / "one").saved) == saved
    assert saved == ["classifier.bias", "classifier.weight", "pre_classifier.bias", "pre_classifier.weight"]


def test_a_head_that_no_file_has_is_refused(backbones: dict[str, Checkpoint], tmp_path: Path) -> None:
    save_adapter(
        tmp_path / "one", backbones["roberta"], target_modules=["query"], modules_to_save=["classifier.out_proj"]
    )
    adapter = read_adapter("one", tmp_path / "one")
    with pytest.raises(CheckpointUnsupported, match=r"has classifier\.dense\.bias, classifier\.dense\.weight") as error:
        merged_checkpoint(backbones["roberta"], adapter, tmp_path / "merged")
    assert "modules_to_save=['classifier.dense']" in error.value.fix
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_another_backbone_is_refused(backbones: dict[str, Checkpoint], tmp_path: Path) -> None:
    save_adapter(tmp_path / "one", backbones["bert"], task_type="SEQ_CLS", target_modules=["query"])
    adapter = read_adapter("one", tmp_path / "one")
    for family in ("distilbert", "roberta"):
        with pytest.raises(CheckpointCorrupt, match=r"changes bert\.encoder"):
            merged_checkpoint(backbones[family], adapter, tmp_path / "merged")


def test_labels_that_do_not_fit_the_head_are_refused(backbones: dict[str, Checkpoint], tmp_path: Path) -> None:
    adapted = save_adapter(tmp_path / "one", backbones["distilbert"], task_type="SEQ_CLS", target_modules=["q_lin"])
    adapted.config.id2label = {0: "no", 1: "yes"}
    adapted.config.save_pretrained(tmp_path / "one")
    with pytest.raises(CheckpointCorrupt, match=r"2 labels, .* 3"):
        merged_checkpoint(backbones["distilbert"], read_adapter("one", tmp_path / "one"), tmp_path / "merged")


def test_adapters_and_heads_are_found_by_name(backbones: dict[str, Checkpoint], tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", "empty"):
        (tmp_path / name).mkdir()
    for name in ("b", ".hidden"):
        (tmp_path / name / "adapter_config.json").write_text("{}")
    (tmp_path / "a" / "config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert list(find_adapters(tmp_path).items()) == [("a", tmp_path / "a"), ("b", tmp_path / "b")]


def test_a_plain_pattern_is_left_to_peft_and_a_regular_expression_is_not(
    backbones: dict[str, Checkpoint], tmp_path: Path
) -> None:
    fields = {"target_modules": ["q_lin"], "rank_pattern": {"q_lin": 2}}
    save_adapter(tmp_path / "one", backbones["distilbert"], task_type="SEQ_CLS", **fields)
    settings = read_adapter("one", tmp_path / "one").settings
    assert settings is not None and settings.for_peft([Q])["rank_pattern"] == {"q_lin": 2}
    edit_fields(tmp_path / "one", rank_pattern={"q_lin|(v_lin)": 2})
    settings = read_adapter("one", tmp_path / "one").settings
    assert settings is not None and json.dumps(settings.for_peft([Q])["rank_pattern"]) == json.dumps(
        {Q.replace(".", r"\."): 2}
    )
