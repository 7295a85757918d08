"""The option --cpu-math bf16, for which no variant is built yet."""

from __future__ import annotations

from hfx.errors import UsageError
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.options import ExportOptions


def check_bfloat16(options: ExportOptions, precision: Precision | None) -> None:
    """Raise UsageError for --cpu-math bf16."""
    if options.cpu_math != "bf16":
        return
    if precision is None:
        reason = "--cpu-math bf16 is for CPUs, and nothing is built for one."
        raise UsageError(reason, "Leave it out, or use --device both.")
    if precision != "fp32":
        raise UsageError(f"--cpu-math bf16 is for fp32, not {precision}.", "Leave one of them out.")
    raise UsageError("--cpu-math bf16: no CPU runtime computes in bfloat16.", "Leave it out.")
