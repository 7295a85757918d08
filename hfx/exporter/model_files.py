"""Write the files of model folders: copied code, JSON, configurations, a tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfx.repository.config_pbtxt import ModelConfig, render


def copy_files(folder: Path, files: Mapping[str, Path]) -> Path:
    """Copy `files` (target name, with folders -> source) into a new version folder in `folder`, and return it."""
    version = folder / "1"
    version.mkdir()
    for name, source in files.items():
        (version / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(source, version / name)
    return version


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(config: ModelConfig, made_by: str, path: Path) -> None:
    """Write a configuration that says which command made it."""
    path.write_text(render(config, made_by=made_by), encoding="utf-8")


def write_tokenizer_json(tokenizer: Any, path: Path) -> None:
    """Write the fast tokenizer as transformers uses it, without the truncation and padding of its last call."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.save(str(path))
