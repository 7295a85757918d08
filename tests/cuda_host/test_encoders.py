"""The kernels that encoders run on CUDA."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS
from hfx.exporter.encoder.graph.fusion import rows_graph
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.encoder import half
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.machine.cuda_host import needs_cuda_host, run
from tests.unit.exporter.test_fusion import graphs

pytestmark = needs_cuda_host
# ONNX Runtime computes a part of the rotation on the CPU, so runs are not captured (1.31.1).
NOT_CAPTURED = {"roformer"}
POOLED = [(name, "feature-extraction", "mean") for name in sorted((ENCODERS | DECODERS) - NOT_CAPTURED)]
OTHERS = [
    *(("bert", "feature-extraction", mode) for mode in ("cls", "max", "lasttoken", "weightedmean")),
    ("bart", "zero-shot-classification", ""),
    ("modernbert", "text-classification", ""),
    ("llama", "text-classification", ""),
]


@pytest.mark.parametrize(("model_type", "task", "mode"), [*POOLED, *OTHERS])
def test_rectangular_batches_of_an_encoder_can_be_captured(
    tmp_path: Path, cuda: Path, model_type: str, task: str, mode: str
) -> None:
    rectangular = rows_graph(half(graphs(model_type, task, mode)[1].model), takes_empty=False)
    assert rectangular is not None
    onnx.save(rectangular, tmp_path / "rows.onnx")
    assert run(cuda, "tests.cuda_host.captures", tmp_path / "rows.onnx") == {str(tmp_path / "rows.onnx"): ""}


@pytest.mark.parametrize("name", ["bart", "t5-gated"])
def test_tokens_of_a_source_do_not_attend_to_the_padding_behind_it(tmp_path: Path, cuda: Path, name: str) -> None:
    """Flash attention gets the width of the batch in the place of the sources' lengths (graph/attention.py)."""
    checkpoint = tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build(name))
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["fp16"], 127)
    counts = run(cuda, "tests.cuda_host.graph_runs", read_spec(tmp_path / "engine").files.encoder)
    kernels = [name for name in counts if name.startswith("launch")]
    assert any("SoftmaxKernel" in kernel for kernel in kernels)
    assert not any("flash_fwd" in kernel for kernel in kernels)
