"""The kernels that encoders run on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.machine.cuda_host import needs_cuda_host, run

pytestmark = needs_cuda_host


@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_tokens_of_a_source_do_not_attend_to_the_padding_behind_it(tmp_path: Path, cuda: Path, name: str) -> None:
    """Flash attention gets the width of the batch in the place of the sources' lengths (graph/attention.py)."""
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build(name))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp16"], 127)
    counts = run(cuda, "tests.cuda_host.graph_runs", read_spec(tmp_path / "engine").files.encoder)
    kernels = [name for name in counts if name.startswith("launch")]
    assert any("SoftmaxKernel" in kernel for kernel in kernels)
    assert not any("flash_fwd" in kernel for kernel in kernels)
