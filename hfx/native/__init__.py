"""hfx's own operators for ONNX Runtime, in C++: they compute the products of int8 generators and encoders."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hfx.errors import NativeMissing


def is_built() -> bool:
    """Return whether the shared library for this machine exists."""
    from hfx.native.build import HERE, LIBRARY, unsupported

    return not unsupported() and (HERE / LIBRARY).is_file()


def library() -> Path:
    """Return the path of the shared library of operators, for ONNX Runtime's `register_custom_ops_library`.

    Raises NativeMissing if hfx was installed without it: on another system, or where it could not be compiled.
    """
    from hfx.native.build import HERE, LIBRARY, ZIGLANG, unsupported

    if reason := unsupported():
        raise NativeMissing(reason, "Use another runtime: `--cpu-runtime auto` chooses one.")
    path = HERE / LIBRARY
    if path.is_file():
        return path
    raise NativeMissing(
        f"hfx was installed without its native kernels: {path} was not built.",
        f"Run `pip install {ZIGLANG}` and `python -m hfx.native.build`, which says what is missing.",
    )


def libraries(folder: Path | None = None) -> dict[str, Path]:
    """Return the libraries in `folder`, by processor as platform.machine() names it; by default, those of hfx.

    A model is published with all of them, because it may be served on another processor. Raises NativeMissing if hfx
    has none for this machine.
    """
    from hfx.native.build import TARGETS

    paths = {machine: (folder or library().parent) / target.library for machine, target in TARGETS.items()}
    return {machine: path for machine, path in paths.items() if path.is_file()}


def missing(files: Iterable[str], machine: str) -> list[str]:
    """Return the paths of the libraries for `machine` that `files` of models lack beside another processor's."""
    from hfx.native.build import TARGETS

    paths = set(map(PurePosixPath, files))
    folders = {path.parent for path in paths if path.name in {target.library for target in TARGETS.values()}}
    own = {folder / TARGETS[machine].library for folder in folders} if machine in TARGETS else set()
    return sorted(map(str, own - paths))


def kernels() -> str:
    """Return the name of the kernels that the operators use on this processor; "" if they can use none.

    The names are amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni and avx2 on x86-64, neon-i8mm and neon-dot on
    aarch64. The environment variable HFX_NATIVE_KERNELS selects other kernels that the processor can run. Raises
    NativeMissing if the library is missing or can't be loaded, or if the variable names no kernels.
    """
    name = _text("hfx_native_kernels")
    if name == "?":
        raise NativeMissing(f"{refusal()}.", "Change it, or leave it out.")
    return name


def refusal() -> str:
    """Return why `kernels` has no name, without a period. Raises NativeMissing for a library that can't be loaded."""
    return _text("hfx_native_refusal").removeprefix("hfx: ")


def _text(function: str) -> str:
    path = library()
    try:
        text = getattr(ctypes.CDLL(str(path)), function)
    except OSError as error:
        raise NativeMissing(f"{path} can't be loaded: {error}.", "Run `python -m hfx.native.build` again.") from error
    text.restype = ctypes.c_char_p
    return str(text().decode())
