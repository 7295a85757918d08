"""Damaged config.json files, and files that want transformers to load code, kernels, files or too much memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError
from hfx.exporter.config_file import MAX_BYTES
from hfx.exporter.source import open_checkpoint, open_config
from hfx.exporter.tokenizer import load_tokenizer
from tests.attacks.damage import DROPPED, edit_json, load, plan, refused


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"1", b'"bert"', b"{", b"\xff\xfe{}", b"9" * 5000, b"[" * 100_000, b'{"a":' * 100_000],
    ids=lambda content: repr(content[:12]),
)
def test_a_config_that_is_no_object_is_corrupt(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    refused(CheckpointCorrupt, folder / "config.json", lambda: open_checkpoint(str(folder)))


def test_a_huge_config_is_not_parsed(folder: Path) -> None:
    with (folder / "config.json").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    message = refused(CheckpointCorrupt, folder / "config.json", lambda: open_checkpoint(str(folder)))
    assert "MB" in message


def test_a_config_that_is_missing_or_a_folder_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json" in refused(CheckpointCorrupt, folder, lambda: open_checkpoint(str(folder)))
    (folder / "config.json").mkdir()
    assert "config.json" in refused(CheckpointCorrupt, folder, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        *(({"model_type": model_type}, CheckpointCorrupt) for model_type in (DROPPED, None, 5, ["bert"])),
        ({"model_type": DROPPED, "auto_map": {"AutoModel": "evil.Evil"}}, CheckpointUnsafe),
        ({"_attn_implementation": "somebody/kernels"}, CheckpointUnsafe),
        ({"_attn_implementation_internal": "somebody/kernels"}, CheckpointUnsafe),
        ({"attn_implementation": "somebody/kernels"}, CheckpointUnsafe),
        ({"transformers_weights": "../other.safetensors"}, CheckpointUnsafe),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, CheckpointUnsupported),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value.__name__,
)
def test_a_config_without_a_type_or_with_code_or_quantization_is_refused(
    folder: Path, fields: dict[str, Any], kind: type[SourceError]
) -> None:
    edit_json(folder / "config.json", **fields)
    refused(kind, folder / "config.json", lambda: open_checkpoint(str(folder)))


def test_remote_code_beside_a_known_type_is_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_json(
        folder / "config.json", auto_map={"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"}
    )
    load(folder)
    assert not (tmp_path / "ran").exists()


def test_an_adapter_is_unsupported(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')
    refused(CheckpointUnsupported, folder / "adapter_config.json", lambda: open_checkpoint(str(folder)))


WRONG: dict[str, tuple[object, ...]] = {
    "architectures": ("BertForSequenceClassification", [1]),
    "vocab_size": ("21", -1, 10**12),
    "hidden_size": (0, 32.0),
    "num_hidden_layers": ("two", 10**9),
    "num_attention_heads": (0,),
    "max_position_embeddings": (True, 1e9),
    "num_labels": ("x", 10**9),
    "id2label": ({"a": "x"}, {"0": "a", "5": "b"}, {"1": "a", "2": "b"}, {"00": "a"}, {}, ["a", "b"]),
    "label2id": (3, {"a": "0"}),
    "problem_type": ("nonsense", ["regression"]),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_of_a_wrong_kind_is_named_at_once(folder: Path, field: str, value: object) -> None:
    edit_json(folder / "config.json", **{field: value})
    message = refused(CheckpointCorrupt, folder / "config.json", lambda: open_checkpoint(str(folder)))
    assert field in message


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": None},
        {"vocab_size": [21]},
        {"hidden_act": "nonsense"},
        {"num_attention_heads": 5},
        {"pad_token_id": "x"},
        {"pad_token_id": 10**9},
        {"dtype": "nonsense"},
        {"_attn_implementation": "nonsense"},
    ],
    ids=str,
)
def test_a_config_that_transformers_can_not_build_is_corrupt(folder: Path, fields: dict[str, Any]) -> None:
    edit_json(folder / "config.json", **fields)
    refused(CheckpointCorrupt, folder, lambda: load(folder))


def test_a_config_field_of_the_wrong_type_is_not_blamed_on_the_tokenizer(folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings="yes")
    message = refused(CheckpointCorrupt, folder / "config.json", lambda: load_tokenizer(open_checkpoint(str(folder))))
    assert "tie_word_embeddings" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": 90_000_000},
        {"hidden_size": 999_998},
        {"max_position_embeddings": 50_000_000},
        {"num_hidden_layers": 99},
    ],
    ids=str,
)
def test_a_model_larger_than_its_weight_files_is_not_built(folder: Path, fields: dict[str, Any]) -> None:
    edit_json(folder / "config.json", **fields)
    message = refused(CheckpointCorrupt, folder / "config.json", lambda: load(folder))
    assert "parameters" in message


@pytest.mark.parametrize("model_type", ["vit", "nonsense", "clip"])
def test_a_model_type_that_has_no_class_for_the_task_is_unsupported(folder: Path, model_type: str) -> None:
    edit_json(folder / "config.json", model_type=model_type)
    refused(CheckpointUnsupported, model_type, lambda: load(folder))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        *(({"model_type": name}, name) for name in ("vit", "glm", "longformer", "funnel", "fnet", "xlnet", "../x")),
        *(({"model_type": "big_bird", "attention_type": attention}, "attention_type")
          for attention in (DROPPED, "block_sparse", ["original_full"])),
        *(({"model_type": "ibert", "quant_mode": mode}, "quant_mode") for mode in (True, None, "no")),
        ({"max_position_embeddings": 5}, "5 tokens"),
    ],
)  # fmt: skip
def test_an_architecture_that_can_not_be_exported_is_refused_by_the_plan(
    folder: Path, fields: dict[str, Any], named: str
) -> None:
    edit_json(folder / "config.json", **fields)
    refused(CheckpointUnsupported, named, lambda: plan(folder))


def test_an_embedding_without_a_width_is_corrupt(folder: Path) -> None:
    edit_json(folder / "config.json", hidden_size=DROPPED)
    refused(CheckpointCorrupt, "hidden_size", lambda: plan(folder, task="feature-extraction"))


def test_a_dry_run_refuses_the_same_configs(folder: Path) -> None:
    edit_json(folder / "config.json", id2label={"a": "x"})
    refused(CheckpointCorrupt, folder / "config.json", lambda: open_config(str(folder)))
