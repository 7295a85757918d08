"""Ways to damage a checkpoint, and checks of the error that refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import SourceError
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.load import load_model
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import open_checkpoint
from hfx.exporter.tokenizer import load_tokenizer

DROPPED = object()


def edit_json(file: Path, **fields: Any) -> None:
    """Set fields of a JSON object; DROPPED removes a field."""
    content = json.loads(file.read_text(encoding="utf-8")) | fields
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not DROPPED}), encoding="utf-8")


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def pickle_weights(folder: Path, change: Callable[[dict[str, Any]], Any], **options: Any) -> Path:
    """Replace the safetensors by a pickle of the tensors that `change` returns."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(change(tensors), folder / "pytorch_model.bin", **options)
    return folder / "pytorch_model.bin"


def plan(folder: Path, **options: Any) -> EncoderPlan:
    return make_plan(open_checkpoint(str(folder)), ExportOptions(**options))


def load(folder: Path, task: str | None = None) -> None:
    """Read everything that is read before a graph is built."""
    decided = plan(folder, task=task)
    load_tokenizer(decided.checkpoint)
    load_model(decided.checkpoint, decided.kind.auto_class, decided.kind.headless)


def refused(kind: type[SourceError], names: object, action: Callable[[], object]) -> str:
    """Return the message of the error of exactly this kind that `action` raises, after checks.

    The message must name `names` and have a fix, and the exit code must be 3.
    """
    with pytest.raises(SourceError) as caught:
        action()
    error = caught.value
    assert type(error) is kind, error
    assert error.exit_code == 3
    assert str(names) in error.message
    assert error.fix
    assert len(error.message) < 1200
    return error.message
