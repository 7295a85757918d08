"""The engine folders of a generator as they are written: in which formats, and for which CPU runtimes.

Owns the formats that are tried and in which order. Which of them is good enough is comparison.py's.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hfx.exporter.families import FORMATS, EngineFacts, Formats, write_engine_folder
from hfx.exporter.generation.memory import let_go
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.options import Precision
from hfx.exporter.runtime import Runtime, weight_levels
from hfx.local import Device

# What is tried, the fastest first, where the one before is beyond the limits: heads decide between close tokens, a
# source's K and V in int8 lose where few values are large, and finer scales of int4 cost a little speed.
FORMATS_TRIED: Mapping[Precision, tuple[Formats, ...]] = {
    "fp32": (FORMATS["fp32"],),
    "fp16": (FORMATS["fp16"],),
    "int8": (FORMATS["int8"], replace(FORMATS["int8"], head="fp32", cross="float32")),
    "int4": (
        replace(FORMATS["int4"], head="int4", embedding="int4", block=128),
        FORMATS["int4"],
        replace(FORMATS["int4"], head="fp32", cross="float32", block=16),
    ),
}


def write_first(plan: GeneratorPlan, version: Path, device: Device, runtimes: tuple[Runtime, ...]) -> EngineFacts:
    """The engine folder of `device` in the formats that are tried first; returns the facts of its engine.json."""
    return write(plan, version, device, FORMATS_TRIED[plan.built[device]][0], runtimes)


def write(
    plan: GeneratorPlan, version: Path, device: Device, formats: Formats, runtimes: tuple[Runtime, ...]
) -> EngineFacts:
    """The engine folder of `device` in `formats`, in the place of one that is there.

    It is for `runtimes`: ONNX Runtime's files are in every folder, as the reserve where OpenVINO is not installed.
    """
    folder = version / device
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return write_engine_folder(
            plan.checkpoint, folder, formats, weight_levels(), "openvino" in runtimes, plan.max_length
        )
    finally:
        let_go()
