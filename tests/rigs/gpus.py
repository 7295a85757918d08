"""Whether this machine has a GPU that ONNX Runtime can use."""

from __future__ import annotations

import numpy as np
import pytest

from hfx.python_backends.engine.kv_cache import copy_graph
from hfx.python_backends.engine.sessions import PROVIDERS, SessionSettings, open_session
from hfx.python_backends.errors import ModelRefused


def _has_cuda() -> bool:
    import onnxruntime

    if PROVIDERS["CUDA"] not in onnxruntime.get_available_providers():
        return False
    try:
        open_session(copy_graph(np.float32), SessionSettings(provider="CUDA"))
    except ModelRefused:
        return False
    return True


HAS_CUDA = _has_cuda()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no GPU, or no onnxruntime-gpu")
