"""What the user asked of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hfx.releases import DEFAULT_TAG

Precision = Literal["fp32", "fp16", "int8", "int4"]
Device = Literal["cpu", "gpu", "both"]
CpuRuntime = Literal["auto", "openvino", "onnxruntime", "native"]
CpuMath = Literal["fp32", "bf16"]
Exporter = Literal["own", "optimum"]
# The metric on the user's own labelled data may fall by this share against torch, unless --max-drop says otherwise.
DEFAULT_MAX_DROP = 0.01


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for; None is "you choose"."""

    name: str | None = None
    task: str | None = None
    precision: str | None = None
    device: Device = "both"
    cpu_runtime: CpuRuntime = "auto"
    cpu_math: CpuMath = "fp32"
    exporter: Exporter = "own"
    repository: Path = Path("model_repository")
    triton: str = DEFAULT_TAG
    max_batch_size: int | None = None
    slots: int | None = None
    max_length: int | None = None
    aggregation: str | None = None
    verify_data: tuple[Path, ...] = ()
    max_drop: float | None = None
    force: bool = False
    command: str = "hfx export"
