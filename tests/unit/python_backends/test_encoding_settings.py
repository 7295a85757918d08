"""The file of an encoder's settings: what is read from it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hfx.python_backends.encoding import Settings, open_encoder, tensors
from hfx.python_backends.errors import InvalidInput
from tests import zoo
from tests.rigs.checkpoints.encoder_line import encoder_for, widths


@pytest.fixture
def bert() -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer("entities-bert"))


def test_settings_are_read_from_their_file(bert: Any, tmp_path: Path) -> None:
    encoder_for(bert, "text-classification", tmp_path)
    written = {"task": "text-classification", "max_length": 32, "widths": [16, 32], "pad_id": 7, "later": "unknown"}
    (tmp_path / "settings.json").write_text(json.dumps(written))
    encoder = open_encoder(tmp_path)
    assert encoder.settings == Settings("text-classification", 32, (16, 32), pad_id=7)
    row = encoder.encode(["a"])[0]
    assert not isinstance(row, InvalidInput)
    assert tensors([[row]], encoder.settings)[0]["input_ids"][0, 3:].tolist() == [7] * 13


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"task": "chess"}, "task"),
        ({"max_length": 0}, "max_length"),
        ({"widths": [32, 16]}, "ascend"),
        ({"widths": [16]}, "no width"),
        ({"truncation_side": "up"}, "truncation_side"),
        ({"hypothesis_template": "no place"}, "no place"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], reason: str, tmp_path: Path) -> None:
    good = {"task": "text-classification", "max_length": 32, "widths": widths(32)}
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(good | wrong))
    with pytest.raises(ValueError, match=reason):
        Settings.read(path)
