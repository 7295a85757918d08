"""The ways in which an encoder's net is written and run, in the order in which a near tie between them is decided.

A way is a class in a file of its subject (`Variant` in variant.py says what each method does). Adapters that share a
backbone have a variant of their own, adapters/adapted.py.
"""

from __future__ import annotations

from hfx.errors import UsageError
from hfx.exporter.mixed_precision import Precision
from hfx.exporter.options import CpuMath, CpuRuntime
from hfx.exporter.variants.bfloat16 import NativeBfloat16
from hfx.exporter.variants.cuda import Fused, Half
from hfx.exporter.variants.floats import Floats
from hfx.exporter.variants.int8 import Functions, Native, NativeFloats
from hfx.exporter.variants.variant import Variant
from hfx.local import Device

VARIANTS: tuple[Variant, ...] = (
    Native(),
    Functions(),
    NativeFloats(),
    NativeBfloat16(),
    Floats(),
    Fused(),
    Half(),
)


def offered(
    device: Device, precision: Precision, runtime: CpuRuntime = "auto", math: CpuMath = "fp32"
) -> tuple[Variant, ...]:
    """Return the variants for `device` in `precision` that this machine can run, or only those of the named `runtime`.

    Raises UsageError if the machine lacks what the named runtime needs.
    """
    ways = [each for each in VARIANTS if (each.device, each.precision, each.math) == (device, precision, math)]
    named = [each for each in ways if runtime in ("auto", each.runtime)]
    if available := tuple(each for each in named if not each.missing()):
        return available
    raise UsageError(f"--cpu-runtime {runtime}: {named[0].missing()}.", named[0].fix)
