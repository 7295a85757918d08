"""An export that can't hold its checkpoint is refused before its first step."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hfx.errors import MemoryShort
from hfx.exporter import load, pipeline
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from tests.rigs.checkpoints import tiny_checkpoints

VALUES = 3 * 1000 + 24


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose files have VALUES values, in float16 and in float32."""
    folder = tiny_checkpoints.save(tmp_path / "checkpoint", tiny_checkpoints.bert())
    for file in folder.glob("*.safetensors"):
        file.unlink()
    save_file({"a": np.zeros((3, 1000), np.float16), "b": np.zeros(24, np.float32)}, folder / "model.safetensors")
    return folder


def test_memory_is_needed_for_every_value_as_a_float_and_for_the_libraries(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 4 * VALUES + load.LIBRARY_BYTES
    monkeypatch.setattr(load, "available_memory", lambda: needed)
    load.require_memory(open_checkpoint(str(checkpoint)))
    monkeypatch.setattr(load, "available_memory", lambda: needed - 1)
    with pytest.raises(MemoryShort, match=r"3,024 values: .* 0\.6 GB"):
        load.require_memory(open_checkpoint(str(checkpoint)))


def test_an_export_without_the_memory_writes_nothing(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = checkpoint.parent / "repository"
    options = ExportOptions(name="m", task="text-classification", precision="fp32", device="cpu", repository=repository)
    tiny_checkpoints.save(checkpoint, tiny_checkpoints.bert())
    plan = pipeline.make_plan(open_checkpoint(str(checkpoint)), options)
    monkeypatch.setattr(load, "available_memory", lambda: 1)
    with pytest.raises(MemoryShort):
        pipeline.export(plan, lambda title: nullcontext(None))
    assert not [path for path in repository.rglob("*") if path.is_file() and not path.name.startswith(".")]
