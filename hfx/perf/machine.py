"""Facts about this machine for result files: processor, cores, memory, package versions, and GPUs.

GPUs are read from nvidia-smi. If it is missing or fails, there are none; a value that it does not know ("[N/A]") is
None.
"""

from __future__ import annotations

import csv
import os
import platform
import shutil
import subprocess
from statistics import fmean

from hfx.extras import processor, versions
from hfx.perf.results import Gpu, Machine

PACKAGES = (
    "hfx", "onnxruntime", "onnxruntime-gpu", "tokenizers", "torch", "transformers", "optimum",
    "nvidia-pytriton", "tritonclient", "grpcio", "locust", "numpy",
)  # fmt: skip


def machine() -> Machine:
    """Describe this machine in its current state."""
    import psutil

    return Machine(
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),  # usable by this process
        memory=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        load=os.getloadavg()[0],
        gpus=tuple(gpu.name for gpu in local_gpus()),
        versions=versions(PACKAGES),
    )


# GPUs

NVIDIA_SMI = "nvidia-smi"
QUERY = ("--query-gpu=name,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
ANSWER_SECONDS = 10.0  # nvidia-smi may have to wake the driver, which takes time
COLUMNS = 3  # name, percent, MiB
MIB = 1 << 20


def local_gpus() -> tuple[Gpu, ...]:
    """Return the current state of this machine's GPUs."""
    tool = shutil.which(NVIDIA_SMI)
    if tool is None:
        return ()
    try:
        done = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines())]
    return tuple(_gpu(*row) for row in rows if len(row) == COLUMNS)


def joined_gpus(samples: list[tuple[Gpu, ...]]) -> tuple[Gpu, ...]:
    """Combine samples: the mean utilization and the largest memory of each GPU. GPUs are matched by index."""
    gpus = []
    for same in zip(*(sample for sample in samples if sample), strict=False):
        busy = [gpu.busy for gpu in same if gpu.busy is not None]
        memory = [gpu.memory for gpu in same if gpu.memory is not None]
        gpus.append(Gpu(same[0].name, fmean(busy) if busy else None, max(memory, default=None)))
    return tuple(gpus)


def _gpu(name: str, percent: str, mebibytes: str) -> Gpu:
    busy, memory = _number(percent), _number(mebibytes)
    return Gpu(name, None if busy is None else busy / 100, None if memory is None else round(memory * MIB))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
