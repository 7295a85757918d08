"""ONNX Runtime captures the step of every family of generators as a CUDA graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.machine.cuda_host import needs_cuda_host, run

pytestmark = needs_cuda_host


@pytest.mark.parametrize("name", tiny_generators.GENERATORS)
def test_every_graph_of_a_generator_can_be_captured(tmp_path: Path, cuda: Path, name: str) -> None:
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build(name))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp16"], 127)
    files = read_spec(tmp_path / "engine").files
    graphs = [*files.decoder.values(), *([files.encoder] if files.encoder else [])]
    assert set(run(cuda, "tests.cuda_host.captures", *graphs).values()) == {""}
