"""Adapters that aren't plain LoRA, and damaged or hostile folders, are refused by the file and the field or tensor."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError, UsageError
from hfx.exporter.adapters.folder import find_adapters, read_adapter
from tests.unit.exporter.adapters.adapters import edit_fields, edit_tensors, save_adapter, save_backbone

PREFIX = "base_model.model."
Q = f"{PREFIX}distilbert.transformer.layer.0.attention.q_lin"
Tensors = dict[str, torch.Tensor]

UNSUPPORTED: dict[str, dict[str, Any]] = {
    "peft_type": {"peft_type": "IA3"},
    "use_dora": {"use_dora": True},
    "bias": {"bias": "lora_only"},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "trainable_token_indices": {"trainable_token_indices": [3]},
    "layer_replication": {"layer_replication": [[0, 2]]},
    "init_lora_weights": {"init_lora_weights": "pissa_niter_4"},
    "loftq_config": {"loftq_config": {"loftq_bits": 4}},
    "corda_config": {"corda_config": {"corda_method": "ipm"}},
    "megatron_config": {"megatron_config": {"tensor_model_parallel_size": 2}},
    "lora_bias": {"lora_bias": True},
    "target_parameters": {"target_parameters": ["experts.gate_up_proj"]},
    "arrow_config": {"arrow_config": {"top_k": 3}},
    "alora_invocation_tokens": {"alora_invocation_tokens": [5]},
    "use_qalora": {"use_qalora": True},
    "task_type": {"task_type": "CAUSAL_LM"},
    "later_field": {"later_field": 0},
    "r is 257; adapters may have 256": {"r": 257},
    "r is 1099511627776": {"r": 2**40},
    "rank_pattern.q_lin is 300": {"rank_pattern": {"q_lin": 300}},
    "alpha_pattern": {"alpha_pattern": {"attention.q_lin": 2, "q_lin": 4}},
}
CORRUPT: dict[str, dict[str, Any]] = {
    "r must be an integer": {"r": 0},
    "rank is 4, but 8": {"r": 8},
    "lora_alpha": {"lora_alpha": "many"},
    "use_rslora": {"use_rslora": 1},
    "rank_pattern": {"rank_pattern": {"q_lin": 0}},
    "modules_to_save": {"modules_to_save": "classifier"},
    "is no regular expression": {"alpha_pattern": {"q_lin(": 2}},
    "not finite": {"lora_alpha": 1e6},
}


def factor(value: Any) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {f"{Q}.lora_B.weight": value}


def more(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.ones(shape)}


TENSORS: dict[str, tuple[type[SourceError], Callable[[Tensors], Tensors]]] = {
    "without the lora_B": (CheckpointCorrupt, lambda t: {k: v for k, v in t.items() if k != f"{Q}.lora_B.weight"}),
    "can't be multiplied": (CheckpointCorrupt, factor(torch.ones(32, 3))),
    "is no linear layer": (CheckpointUnsupported, factor(torch.ones(32, 4, 1, 1))),
    "without values": (CheckpointCorrupt, factor(torch.ones(0, 4))),
    "has the shape [], without values": (CheckpointCorrupt, factor(torch.tensor(1.0))),
    "holds I32": (CheckpointCorrupt, factor(torch.ones(32, 4, dtype=torch.int32))),
    "holds values that are not finite": (CheckpointCorrupt, factor(torch.full((32, 4), float("nan")))),
    "times the scale, is not finite": (CheckpointCorrupt, factor(torch.full((32, 4), 3e38))),
    "of an adapted embedding": (CheckpointUnsupported, more(f"{PREFIX}embeddings.lora_embedding_A", 4, 31)),
    "is of DoRA": (CheckpointUnsupported, more(f"{Q}.lora_magnitude_vector.weight", 32)),
    "lora_bias": (CheckpointUnsupported, more(f"{Q}.lora_B.bias", 32)),
    "no module of modules_to_save": (CheckpointUnsupported, more(f"{PREFIX}embeddings.weight", 40, 32)),
    "a name that peft doesn't write": (CheckpointCorrupt, more("../../weight", 3)),
    "a LoRA product and": (CheckpointUnsupported, more(f"{PREFIX}classifier.lora_A.weight", 4, 32)),
    "has classifier.bias twice": (CheckpointCorrupt, more(f"{PREFIX}classifier.modules_to_save.default.bias", 3)),
    "has no parameter of classifier or score, which": (
        CheckpointCorrupt,
        lambda t: {name: value for name, value in t.items() if "lora_" in name},
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    backbone = save_backbone(folder / "backbone", "distilbert")
    save_adapter(folder / "adapter", backbone, task_type="SEQ_CLS", target_modules=["q_lin"])
    return folder / "adapter"


@pytest.fixture
def adapter(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def refused(kind: type[SourceError], folder: Path, *parts: object) -> None:
    with pytest.raises(SourceError) as caught:
        read_adapter("adapter", folder)
    assert type(caught.value) is kind, caught.value
    assert caught.value.fix
    message = caught.value.message
    assert all(str(part) in message for part in (folder, *parts)), message
    assert "\n" not in message and len(message) < 500


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_an_adapter_that_is_more_than_plain_lora_is_refused_by_field(field: str, adapter: Path) -> None:
    edit_fields(adapter, **UNSUPPORTED[field])
    refused(CheckpointUnsupported, adapter, "adapter_config.json", field)


@pytest.mark.parametrize("part", CORRUPT)
def test_fields_of_wrong_values_are_refused(part: str, adapter: Path) -> None:
    edit_fields(adapter, **CORRUPT[part])
    if part == "not finite":
        edit_tensors(adapter, factor(torch.full((32, 4), 1e34)))
    refused(CheckpointCorrupt, adapter, part)


@pytest.mark.parametrize("part", TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(part: str, adapter: Path) -> None:
    kind, change = TENSORS[part]
    edit_tensors(adapter, change)
    if part.startswith("a LoRA product"):
        edit_tensors(adapter, more(f"{PREFIX}classifier.lora_B.weight", 3, 4))
    refused(kind, adapter, "adapter_model.safetensors", part)


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(size: int, adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(CheckpointCorrupt, adapter, "truncated or damaged")


def test_a_huge_header_is_refused_before_it_is_read(adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    with file.open("wb") as stream:
        stream.write((90 << 20).to_bytes(8, "little") + b"{")
        stream.truncate(100 << 20)  # a sparse file
    refused(CheckpointCorrupt, adapter, "header of 90 MB")


def test_a_file_of_absurd_size_is_refused(adapter: Path) -> None:
    with (adapter / "adapter_model.safetensors").open("r+b") as stream:
        stream.truncate(3 << 30)
    refused(CheckpointUnsupported, adapter, "3.2 GB")


def test_a_pickle_is_refused(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(CheckpointUnsafe, adapter, "adapter_model.bin is a pickle")


def test_a_link_out_of_the_folder_is_refused(adapter: Path, saved: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    file.unlink()
    file.symlink_to(saved / file.name)
    refused(CheckpointUnsafe, adapter, "leads outside")


@pytest.mark.parametrize("content", ["", "[1]", '{"r": 4', "{" + '"a":{' * 100_000, '{"a":' + "[" * 100_000])
@pytest.mark.parametrize("name", ["adapter_config.json", "config.json"])
def test_json_that_is_damaged_or_nested_deep_is_refused(name: str, content: str, adapter: Path) -> None:
    (adapter / name).write_text(content)
    refused(CheckpointCorrupt, adapter, name)


def test_a_pattern_of_exponential_time_is_refused_in_seconds(adapter: Path) -> None:
    edit_fields(adapter, alpha_pattern={r"(.|..|...)+[^n]": 2})
    start = time.monotonic()
    refused(CheckpointCorrupt, adapter, "to be compared")
    assert time.monotonic() - start < 30


def test_many_patterns_are_refused(adapter: Path) -> None:
    edit_fields(adapter, alpha_pattern={f"layer.{index}": 2 for index in range(20_000)})
    refused(CheckpointCorrupt, adapter, "alpha_pattern")


@pytest.mark.parametrize("name", ["Upper", "with space", "a_tokenize"])
def test_a_subfolder_that_cannot_name_a_model_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match=name) as error:
        find_adapters(tmp_path)
    assert "Rename the folder" in error.value.fix


def test_a_folder_without_adapters_is_refused(adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, fix in ((tmp_path / "empty", "Put each"), (adapter, "Pass its parent"), (tmp_path / "no", "Pass a")):
        with pytest.raises(UsageError) as error:
            find_adapters(folder)
        assert fix in error.value.fix


def test_null_and_empty_fields_of_other_versions_are_taken(adapter: Path) -> None:
    edit_fields(adapter, later_field=None, later_flag=False, use_dora=False, loftq_config=None, later_list=[])
    assert read_adapter("adapter", adapter).products
