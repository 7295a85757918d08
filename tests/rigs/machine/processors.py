"""What tests may expect of the processor that they run on.

An x86 processor without VNNI adds u8 x s8 products in pairs, in 16 bits, which saturate if two weights add up to more
than 128; on such a processor hfx writes coarser weights (FOUR_LEVELS). ONNX Runtime's MatMulNBits also has separate
kernels for a single row there: they add up in another order, so that the last bits differ from those of two or more
rows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.errors import NativeMissing
from hfx.exporter.runtime import weight_levels
from hfx.native import kernels


def _has_native() -> bool:
    try:
        return bool(kernels())
    except NativeMissing:
        return False


CPUINFO = Path("/proc/cpuinfo").read_text(encoding="utf-8").replace("\nFeatures", "\nflags")  # Arm's name
FLAGS = set(CPUINFO.partition("\nflags")[2].partition("\n")[0].split())
ALL_KERNELS = {
    "avx512-vnni": "avx512_vnni",
    "avx512-vnni-panels": "avx512_vnni",
    "avx-vnni": "avx_vnni",
    "amx-int8": "amx_int8",
    "avx2": "avx2",
}  # of x86-64, with Linux's name
ARM_KERNELS = {"neon-i8mm": "i8mm", "neon-dot": "asimddp"}
KERNELS = [name for name, flag in (ALL_KERNELS | ARM_KERNELS).items() if flag in FLAGS]  # that run here
HAS_NATIVE = _has_native()  # whether hfx's own operators are built, and run here
LEVELS = weight_levels()  # of the weights that hfx writes here
FEWEST_ROWS = 1 if LEVELS == 127 else 2  # from which on more rows change no bit of a row; the engine's probe finds it


def error(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Return the root-mean-square error relative to `want`."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def int8_error(at_127: float) -> float:
    """Return the limit of a relative error with weights of LEVELS, given the limit `at_127` for 127 levels.

    Rounding weights and rounding activations cost about the same at 127 levels, and their squares add up. Activations
    always have 127 levels. Other weights have steps up to twice as large, which make the limit 1.6 times as large.
    """
    return at_127 if LEVELS == 127 else at_127 * math.sqrt((1 + 2**2) / 2)
