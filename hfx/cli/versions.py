"""`hfx --version`: versions, system and processor, for bug reports."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import hfx
from hfx.errors import NativeMissing
from hfx.extras import processor, versions

PACKAGES = (
    "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "onnxruntime-gpu", "llguidance", "numpy",
    "nvidia-pytriton", "tritonclient", "grpcio", "typer",
)  # fmt: skip


def details() -> dict[str, str]:
    """Return name -> version or description."""
    from hfx import native

    try:
        kernels = native.kernels() or "none for this processor"
    except NativeMissing as missing:
        kernels = missing.message
    return {
        "hfx": f"{hfx.__version__}, {Path(hfx.__file__).parent}",
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "native kernels": kernels,
        **(dict.fromkeys(PACKAGES, "not installed") | versions(PACKAGES)),
    }
