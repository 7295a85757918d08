"""What a bug report needs: versions, system, processor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import hfx
from hfx.errors import NativeMissing

PACKAGES = (
    "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "llguidance", "numpy",
    "nvidia-pytriton", "tritonclient", "grpcio", "typer",
)  # fmt: skip


def details() -> dict[str, str]:
    """Name -> what there is of it."""
    from hfx import native

    try:
        kernels = native.kernels() or "none for this processor"
    except NativeMissing as missing:
        kernels = missing.message
    return {
        "hfx": f"{hfx.__version__}, {Path(hfx.__file__).parent}",
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "native kernels": kernels,
        **dict(_packages()),
    }


def _processor() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        named = None
    return named[1] if named else platform.machine()


def _packages() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"
