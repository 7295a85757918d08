"""The library of native operators that lies beside a model: whether it is whole, and runs on this processor."""

from __future__ import annotations

import ctypes
import hashlib

from ..spec import OperatorLibrary

ELSEWHERE = "Export the model on this machine, or set cpu_runtime to onnxruntime"


def refusal(library: OperatorLibrary | None) -> tuple[str, str] | None:
    """Why the native operators can't serve the model here, and what to do; None where they can."""
    if library is None:
        return "the model has no native operators", "Export it again with --cpu-runtime native"
    # A library that is not whole could end the process: its hash is compared before it is loaded.
    if hashlib.sha256(library.path.read_bytes()).hexdigest() != library.sha256:
        return f"{library.path.name} is not the file that was exported", "Copy or export the model again"
    try:
        kernels = ctypes.CDLL(str(library.path)).hfx_native_kernels
    except (OSError, AttributeError) as error:  # for another system or architecture, or another library
        return f"{library.path.name} can't be loaded ({error})", ELSEWHERE
    kernels.restype = ctypes.c_char_p
    if not kernels():
        return "this processor has none of AVX512-VNNI, AVX-VNNI and AMX-INT8", ELSEWHERE
    return None
