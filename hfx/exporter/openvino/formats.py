"""What the formats of a generator's weights mean for OpenVINO: activations, K and V in pages, and its own grouping.

Owns the choice by processor; how a format is written is linear.py's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hfx.exporter.graph.blocks import Kind
from hfx.exporter.graph.formats import Formats
from hfx.exporter.openvino.linear import Activations
from hfx.python_backends.engine.sessions import CPUINFO

PagedType = Literal["u8", "f16", "f32"]
GROUP = 128  # channels of a row that share a scale: 32, OpenVINO's default, takes 1.1 to 1.2 times as long in batches


def activations_for(cpuinfo: Path = CPUINFO) -> Activations:
    """By row where the processor multiplies tiles of bytes (AMX), else by group: see linear.py."""
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "row" if "amx_int8" in flags else "group"


def paged_type(formats: Formats, kind: Kind) -> PagedType:
    """Exact in fp32. Else a byte, with scales by channel and block of 32 tokens, where no other graph fills pages.

    An encoder writes K and V of sources from outside, and bytes have a layout of OpenVINO's own.
    """
    if formats.precision == "fp32":
        return "f32"
    return "u8" if kind == "decoder" and formats.head != "fp32" else "f16"


def dynamic_group(formats: Formats) -> int:
    """OpenVINO's DYNAMIC_QUANTIZATION_GROUP_SIZE; 0: nothing is quantized at run time."""
    if formats.precision == "fp32":
        return 0
    return min(GROUP, formats.block) if formats.linear == "int4" else GROUP
