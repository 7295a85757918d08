"""generation.json is read strictly: missing, unknown and damaged fields are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.errors import ModelDamaged
from hfx.python_backends.generation.configuration import Configuration
from tests.rigs.engine.generation_models import configuration, facts


def damage(folder: Path, content: str) -> str:
    (folder / "generation.json").write_text(content)
    with pytest.raises(ModelDamaged) as caught:
        Configuration.read(folder)
    assert str(folder / "generation.json") in str(caught.value)
    return str(caught.value)


def test_a_configuration_is_what_the_file_says(tmp_path: Path) -> None:
    changed: dict[str, Any] = {
        "max_source": 48,
        "bad_words_ids": [[3, 4], [5]],
        "bad_words_at_start": True,
        "forced_bos_token_id": 0,
        "defaults": {"stop_words": ["end"], "num_beams": 4},
        "prefix": "summarize: ",
    }
    (tmp_path / "generation.json").write_text(json.dumps(facts(**changed)))
    found = Configuration.read(tmp_path)
    assert found == configuration(**changed)
    assert found.bad_words_ids == ((3, 4), (5,))
    assert found.has_encoder
    assert found.most_tokens == 63
    assert found.defaults["stop_words"] == ("end",)


@pytest.mark.parametrize("name", [name for name in facts() if name != "format"])
def test_each_missing_field_of_generation_json_is_named(tmp_path: Path, name: str) -> None:
    left = {key: value for key, value in facts().items() if key != name}
    assert f"{name} is missing" in damage(tmp_path, json.dumps(left))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2), ("format", None), ("task", "poetry"), ("kind", "encoder"), ("max_length", "64"),
        ("max_length", True), ("max_length", 0), ("max_length", 1), ("max_source", 0), ("kind", "encoder-decoder"),
        ("defaults", []), ("eos_token_ids", 2), ("eos_token_ids", [-1]), ("eos_token_ids", ["</s>"]),
        ("pad_token_id", None), ("bos_token_id", 1.0), ("decoder_start_token_ids", [2]), ("bad_words_ids", [3]),
        ("prefix", None), ("clean_up_tokenization_spaces", "false"), ("special_token_ids", [None]), ("extra", 1),
    ],
)  # fmt: skip
def test_an_invalid_field_is_named(tmp_path: Path, name: str, value: object) -> None:
    assert name in damage(tmp_path, json.dumps(facts(**{name: value})))


@pytest.mark.parametrize("content", ["", "[]", "{", "null"])
def test_a_file_without_an_object_is_refused(tmp_path: Path, content: str) -> None:
    damage(tmp_path, content)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelDamaged, match="can't be read"):
        Configuration.read(tmp_path)


@pytest.mark.parametrize("defaults", [{"max_new_token": 3}, {"top_p": 2}, {"stop_words": 3}])
def test_an_invalid_default_setting_is_named(tmp_path: Path, defaults: dict[str, Any]) -> None:
    message = damage(tmp_path, json.dumps(facts(defaults=defaults)))
    assert f"defaults.{next(iter(defaults))}" in message
