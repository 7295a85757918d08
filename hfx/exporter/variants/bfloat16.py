"""The fp32 file with native operators that compute in bfloat16, which `--cpu-math bf16` selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hfx.errors import UsageError
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.options import CpuMath, ExportOptions
from hfx.exporter.variants.int8 import NativeFloats


@dataclass(frozen=True)
class NativeBfloat16(NativeFloats):
    """The same file with weights in bfloat16, to which the operators round the rows that they multiply.

    Answers have the same bits on every processor. Processors without bfloat16 instructions need the time of float32.
    """

    name: ClassVar[str] = "native-bf16"
    math: ClassVar[CpuMath] = "bf16"
    accuracy: ClassVar[str] = "bf16"


def check_bfloat16(options: ExportOptions, precision: Precision | None) -> None:
    """Raise UsageError for --cpu-math bf16 if no file is built that can use it."""
    if options.cpu_math != "bf16":
        return
    if precision is None:
        raise UsageError("--cpu-math bf16 is for CPUs, and nothing is built for one.", "Use --device both.")
    if precision != "fp32":
        raise UsageError(f"--cpu-math bf16 is for fp32, not {precision}.", "Leave one of them out.")
    if options.cpu_runtime not in ("auto", "native"):
        raise UsageError(
            f"--cpu-runtime {options.cpu_runtime} computes in float32, not bf16.", "Leave one of them out."
        )
    if missing := NativeBfloat16().missing():
        raise UsageError(f"--cpu-math bf16 needs native operators, and {missing}.", "Leave it out.")
