"""How a trained generator decodes when a caller says nothing: its generation_config.json, used and saved alike.

Knows no task: the settings are the objectives'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def config(model: Any, settings: dict[str, Any]) -> Any:
    """The GenerationConfig of `settings` (its keywords) with the special tokens of the model."""
    import transformers

    roles = {role: getattr(model.generation_config, role) for role in _ROLES}
    return transformers.GenerationConfig(**roles, **settings)


def save(folder: Path, model: Any, settings: dict[str, Any]) -> None:
    """Write generation_config.json."""
    config(model, settings).save_pretrained(folder)
