"""Generators of tiny_generators.py as whole checkpoints: weights, a tokenizer of letters, and generation settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit import tiny_generators
from tests.unit.generation_models import END, letters

FAMILIES = ("gpt2", "bart", "t5")
LONGEST = 60


def tokenizer() -> Any:
    """One token a letter; id 0 is the end."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=letters(),
        eos_token=END,
        pad_token=END,
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )


def save(folder: Path, name: str, generation: dict[str, Any] | None = None, **config: Any) -> Path:
    """The checkpoint `name` of tiny_generators in `folder`; `generation` are fields of generation_config.json."""
    ends = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}
    model = tiny_generators.build(name, **ends, **config)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | (generation or {})))
    return folder
