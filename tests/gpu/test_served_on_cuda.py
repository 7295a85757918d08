"""Encoders behind a real Triton on a GPU: one hop answers as the Python steps; missing GPUs are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfx.client import Client
from hfx.exporter.graph.generator import top_k_graph
from hfx.python_backends.onnxruntime.config import ConfigError
from hfx.python_backends.onnxruntime.sessions import open_session
from hfx.triton import EmbeddedServer
from hfx.triton.gpu_causes import gpu_cause
from hfx.triton.one_hop import Steps
from tests import zoo
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.machine.gpus import needs_cuda

pytestmark = [pytest.mark.slow, pytest.mark.triton, needs_cuda]

CALLERS = 32
OPTIONS = {"precision": "fp16", "device": "gpu", "cpu_runtime": "auto", "name": "m"}


def answers(repository: Path, steps: Steps, texts: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Return the answers of a server on the GPU to CALLERS texts at a time, and what the start said."""
    said: list[str] = []
    with (
        EmbeddedServer(repository, models=["m"], device="gpu", steps=steps, progress=said.append) as server,
        Client(server.grpc_url) as client,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        return list(callers.map(lambda text: client.infer("m", {"text_input": [text]}), texts)), "\n".join(said)


def test_one_hop_on_a_gpu_answers_as_the_python_steps(tmp_path: Path) -> None:
    export_checkpoint(zoo.checkpoint("sentiment-distilbert"), tmp_path, **OPTIONS)
    texts = [example.text for example in zoo.heldout("sentiment", 200)]
    merged, said = answers(tmp_path, "native", texts)
    assert "served by its Python steps" not in said
    by_steps, _ = answers(tmp_path, "python", texts)
    for one, other in zip(merged, by_steps, strict=True):
        assert one["label"].item() == other["label"].item()
        assert one["score"].item() == pytest.approx(other["score"].item(), abs=5e-3)


def test_a_gpu_with_a_number_that_is_not_there_is_refused_with_the_cause(tmp_path: Path) -> None:
    top_k_graph(tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="could not start CUDAExecutionProvider") as refused:
        open_session({}, tmp_path / "model.onnx", "GPU", 99)
    assert gpu_cause(str(refused.value))[0].startswith("there is no GPU with the configured number")
