"""hfx's own operators for ONNX Runtime, in C++: they compute the products of int8 generators and encoders."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hfx.errors import NativeMissing


def is_built() -> bool:
    """Return whether the shared library exists."""
    from hfx.native.build import HERE, LIBRARY

    return (HERE / LIBRARY).is_file()


def library() -> Path:
    """Return the path of the shared library of operators, for ONNX Runtime's `register_custom_ops_library`.

    Raises NativeMissing if hfx was installed without it: on another system, or where it could not be compiled.
    """
    from hfx.native.build import HERE, LIBRARY, ZIGLANG, unsupported

    path = HERE / LIBRARY
    if path.is_file():
        return path
    if reason := unsupported():
        raise NativeMissing(reason, "Use another runtime: `--cpu-runtime auto` chooses one.")
    raise NativeMissing(
        f"hfx was installed without its native kernels: {path} was not built.",
        f"Run `pip install {ZIGLANG}` and `python -m hfx.native.build`, which says what is missing.",
    )


def kernels() -> str:
    """Return the name of the kernels that the operators use on this processor; "" if they can use none.

    The names are amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni and avx2. The environment variable
    HFX_NATIVE_KERNELS selects other kernels that the processor can run. Raises NativeMissing if the library is missing
    or can't be loaded, or if the variable names no kernels.
    """
    path = library()
    try:
        function = ctypes.CDLL(str(path)).hfx_native_kernels
    except OSError as error:
        raise NativeMissing(f"{path} can't be loaded: {error}.", "Run `python -m hfx.native.build` again.") from error
    function.restype = ctypes.c_char_p
    name: bytes = function()
    if name == b"?":
        raise NativeMissing(
            f"HFX_NATIVE_KERNELS is {os.environ['HFX_NATIVE_KERNELS']!r}, which names no kernels.",
            "Set it to amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni, avx2 or none, or leave it out.",
        )
    return name.decode()
