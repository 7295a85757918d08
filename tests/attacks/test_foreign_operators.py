"""A published model whose native library differs from the installed one: hfx itself never runs that library."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import UsageError
from hfx.exporter.generation.steps import STEPS, answer_in_torch, compare_engines
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from hfx.native import library
from hfx.native.build import LIBRARY
from tests.rigs.checkpoints import generator_checkpoints
from tests.rigs.checkpoints.published import VNNI, export_checkpoint, export_zoo
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here"),
]
# What only code of the library could do is to end the process; the loader alone would map it.
FOREIGN = library().read_bytes() + b"\0"


def foreign(file: Path, facts: Path, key: str) -> None:
    """Replace the model's library by another one, with its own hash in `facts`."""
    text, old = facts.read_text(), hashlib.sha256(file.read_bytes()).hexdigest()
    assert key in text and old in text
    file.unlink()  # a process may have it mapped
    file.write_bytes(FOREIGN)
    facts.write_text(text.replace(old, hashlib.sha256(FOREIGN).hexdigest()))


def loaded() -> set[str]:
    """Return the libraries that this process has mapped."""
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if LIBRARY in line}


def test_a_generator_runs_without_a_foreign_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = generator_checkpoints.save(tmp_path / "checkpoint", "gpt2", {"max_new_tokens": 8})
    steps = [step for step in STEPS if step.run not in (answer_in_torch, compare_engines)]
    options: dict[str, Any] = {"precision": "int8", "device": "cpu", "cpu_runtime": "native"}
    export_checkpoint(saved, tmp_path / "r", steps, name="m", **options)
    with LocalGenerator.open(tmp_path / "r", "m") as model:
        assert model.runtime == "native"
    folder = tmp_path / "r" / "m_stream" / "1" / "cpu"
    foreign(folder / LIBRARY, folder / "engine.json", "operators")
    before = loaded()
    with LocalGenerator.open(tmp_path / "r", "m") as model:
        assert model.runtime == "onnxruntime"
        model.infer({"text_input": "a cat"})
    assert loaded() <= before
    assert [record.getMessage() for record in caplog.records if "this hfx" in record.getMessage()]
    assert json.loads((folder / "engine.json").read_text())["runtime"] == "native"


def test_an_encoder_runs_without_a_foreign_library(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export_zoo("sentiment-distilbert", tmp_path / "r", "m", "int8", "native")
    folder = tmp_path / "r" / "m_net"
    for config in (folder / "config.pbtxt", *(folder / "configs").glob("*.pbtxt")):
        text = config.read_text()
        digest = hashlib.sha256(library().read_bytes()).hexdigest()
        config.write_text(text.replace(digest, hashlib.sha256(FOREIGN).hexdigest()))
    (folder / "1" / LIBRARY).write_bytes(FOREIGN)
    before = loaded()
    if VNNI:
        assert LocalModel.open(tmp_path / "r", "m").infer({"text_input": "a cat"})["label"]
    else:  # the operators define products that such a processor gets wrong
        with pytest.raises(UsageError, match="no VNNI"):
            LocalModel.open(tmp_path / "r", "m")
    assert loaded() <= before
    assert [record.getMessage() for record in caplog.records if "this hfx" in record.getMessage()]
