"""Whether this machine has a GPU that ONNX Runtime can use."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hfx.exporter.graph.generator import top_k_graph
from hfx.python_backends.engine.captures import open_on_gpu
from hfx.python_backends.engine.sessions import PROVIDERS, SessionSettings
from hfx.python_backends.errors import ModelRefused


def _has_cuda() -> bool:
    import onnxruntime

    if PROVIDERS["CUDA"] not in onnxruntime.get_available_providers():
        return False
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "top_k.onnx"
        top_k_graph(graph)
        try:
            open_on_gpu(graph, SessionSettings(provider="CUDA"))
        except ModelRefused:
            return False
    return True


HAS_CUDA = _has_cuda()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no GPU, or no onnxruntime-gpu")
