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

    return Machine(
        processor=processor(),
        cores=cores(),
        memory=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        load=os.getloadavg()[0],
        gpus=tuple(gpu.name for gpu in gpus.look()),
        versions=_versions(),
    )


def processor() -> str:
    """The processor's name."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if named := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
