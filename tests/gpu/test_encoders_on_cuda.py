"""An encoder's fp16 file on ONNX Runtime's CUDA provider is verified there and gives the CPU's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.local.encoder import LocalModel
from tests import zoo
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.gpus import needs_cuda

pytestmark = [pytest.mark.slow, needs_cuda]


def test_a_classifier_is_verified_on_the_gpu_and_answers_there(tmp_path: Path) -> None:
    options = {"precision": "fp16", "device": "gpu", "cpu_runtime": "auto", "name": "m"}
    manifest = export_checkpoint(zoo.checkpoint("sentiment-distilbert"), tmp_path, **options)
    figures: Any = manifest.parity["gpu"]
    assert figures["kind"] == "GPU"
    requests = [{"text_input": example.text} for example in zoo.heldout("sentiment", 200)]
    on_gpu = LocalModel.open(tmp_path, "m", "gpu", "GPU").infer_all(requests)
    on_cpu = LocalModel.open(tmp_path, "m", "gpu", "CPU").infer_all(requests)
    assert [each["label"][0] for each in on_gpu] == [each["label"][0] for each in on_cpu]
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=5e-3)
