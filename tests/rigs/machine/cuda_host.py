"""ONNX Runtime's CUDA provider on a machine without a GPU: what the host does, with nothing computed.

`make test-cuda-host` installs onnxruntime-gpu into the folder CUDA_HOST and runs tests/cuda_host. The provider links
with cuda_runtime.c in the place of CUDA's libraries. Graphs are then divided between CPU and GPU, captured and replayed
by the provider's own code, and launches, copies, waits and allocations are counted. All outputs are zeros.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CUDA_HOST = ROOT / "build" / "cuda-host"
LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libcudnn.so.9")
RUNTIME, DRIVER = HERE / "cuda_runtime.c", HERE / "cuda_driver.c"
needs_cuda_host = pytest.mark.skipif(
    not (CUDA_HOST / "onnxruntime").is_dir(), reason="no onnxruntime-gpu in build/cuda-host: make test-cuda-host"
)


def build(folder: Path) -> None:
    """Compile the libraries that the provider links with into `folder`."""
    from tests.unit.native.libraries import compiler

    made = [*compiler(), "-xc", "-shared", "-fPIC", "-O1", "-w"]
    subprocess.run([*made, "-DPOISON=0", "-o", str(folder / "libcuda.so.1"), str(DRIVER)], check=True)
    first = folder / LIBRARIES[0]
    subprocess.run([*made, f"-Wl,-soname,{first.name}", "-o", str(first), str(RUNTIME)], check=True)
    empty = folder / "empty.c"
    empty.touch()
    for name in LIBRARIES[1:]:
        command = [*made, f"-Wl,-soname,{name}", "-o", str(folder / name), str(empty)]
        subprocess.run([*command, "-xnone", "-Wl,--no-as-needed", str(first)], check=True)


def run(folder: Path, module: str, *arguments: object) -> Any:
    """Run `python -m module` with the provider and the libraries in `folder`, and return the JSON that it prints last.

    Raises CalledProcessError, whose text has the child's log.
    """
    path = os.pathsep.join([str(CUDA_HOST), str(ROOT)])
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    if done.returncode:
        raise AssertionError(f"{module} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def counted() -> Counter[str]:
    """Return how often each thing was done since the last call, for a child process of `run`."""
    library = ctypes.CDLL(LIBRARIES[0])
    library.counted.restype = ctypes.c_size_t
    lines = ctypes.create_string_buffer(1 << 20)
    library.counted(lines, ctypes.c_size_t(len(lines)))
    return read_counts(lines.value.decode())


def read_counts(text: str) -> Counter[str]:
    """Return the counts that cuda_runtime.c has written."""
    counts = Counter[str]()
    for line in text.splitlines():
        count, name = line.split(" ", 1)
        counts[name] += int(count)
    return counts
