"""ONNX Runtime operators of hfx's own, in C++: the products of int8 generators and encoders."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hfx.errors import NativeMissing


def is_built() -> bool:
    """Whether there is a shared library."""
    from hfx.native.build import HERE, LIBRARY

    return (HERE / LIBRARY).is_file()


def library() -> Path:
    """The shared library with the operators, for ONNX Runtime's `register_custom_ops_library`.

    Raises NativeMissing where hfx was installed without it: on other systems, or where it could not be compiled.
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
    """The kernels that the operators use on this processor: amx-int8, avx512-vnni, avx-vnni or avx2; "" if it has none.

    The environment variable HFX_NATIVE_KERNELS names others that it can run. Raises what `library` raises.
    """
    path = library()
    try:
        ask = ctypes.CDLL(str(path)).hfx_native_kernels
    except OSError as error:
        raise NativeMissing(f"{path} can't be loaded: {error}.", "Run `python -m hfx.native.build` again.") from error
    ask.restype = ctypes.c_char_p
    name: bytes = ask()
    if name == b"?":
        raise NativeMissing(
            f"HFX_NATIVE_KERNELS is {os.environ['HFX_NATIVE_KERNELS']!r}, which names no kernels.",
            "Set it to amx-int8, avx512-vnni, avx-vnni, avx2 or none, or leave it out.",
        )
    return name.decode()
