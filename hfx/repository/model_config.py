"""Triton's messages of a model's configuration, from the module that tritonclient generated from model_config.proto.

The module is loaded without its package, because `tritonclient.grpc` imports gRPC, numpy and ml_dtypes: half of what a
server's process would import, and 20 MB of its memory.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

NAME = "tritonclient.grpc.model_config_pb2"


def _load() -> Any:
    """Return the module NAME, which a later import of its package finds too. Raises ModuleNotFoundError."""
    if NAME not in sys.modules:
        package = importlib.util.find_spec("tritonclient")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("No module named 'tritonclient'", name="tritonclient")
        spec = importlib.util.spec_from_file_location(NAME, Path(package.origin).parent / "grpc/model_config_pb2.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[NAME] = module
    return sys.modules[NAME]


pb = _load()
