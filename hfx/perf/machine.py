"""What this machine is: processor, cores, memory, GPUs, the versions of what is measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from hfx.perf.results.schema import Machine
from hfx.perf.server import gpus

PACKAGES = (
    "hfx", "onnxruntime", "onnxruntime-gpu", "openvino", "tokenizers", "torch", "transformers", "optimum",
    "nvidia-pytriton", "tritonclient", "grpcio", "locust", "numpy",
)  # fmt: skip


def machine() -> Machine:
    """This machine now."""
    import psutil

    versions = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),  # that this process may use
        memory=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        load=os.getloadavg()[0],
        gpus=tuple(gpu.name for gpu in gpus.look()),
        versions=versions,
    )


def _processor() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if named := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()
