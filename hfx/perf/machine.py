"""What this machine is: processor, cores, memory, GPUs, the versions of what is measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

from hfx.perf.results.schema import Machine

PACKAGES = (
    "hfx", "onnxruntime", "onnxruntime-gpu", "openvino", "tokenizers", "torch", "transformers", "optimum",
    "nvidia-pytriton", "tritonclient", "grpcio", "locust", "numpy",
)  # fmt: skip
GPU_SECONDS = 10.0  # nvidia-smi may have to wake the driver


def machine() -> Machine:
    """This machine now."""
    import psutil

    return Machine(
        processor=processor(),
        cores=cores(),
        memory=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        load=os.getloadavg()[0],
        gpus=_gpus(),
        versions=_versions(),
    )


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _gpus() -> tuple[str, ...]:
    """The GPUs' names, as nvidia-smi gives them; none without it."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=GPU_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return gpu_names(done.stdout)


def gpu_names(listed: str) -> tuple[str, ...]:
    """From `GPU 0: NVIDIA H200 (UUID: GPU-…)`, a line each; a MIG slice stands indented under its GPU."""
    lines = (line.strip() for line in listed.splitlines() if line.lstrip().startswith(("GPU ", "MIG ")))
    return tuple(_without_uuid(line) for line in lines)


def _without_uuid(line: str) -> str:
    name = line.partition(" (UUID")[0]
    return (name.partition(": ")[2] if name.startswith("GPU ") else name.partition("Device")[0]).strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
