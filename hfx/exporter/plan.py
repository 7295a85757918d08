"""The frozen plan of an export: everything that will be built, decided and checked before any work is done.

A plan is made of the options, a checkpoint's small JSON files, and the names and shapes of its tensors. The kinds of
plans are in encoder/plan.py and generation/plan.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hfx.errors import UsageError
from hfx.exporter.options import CpuRuntime, ExportOptions, Precision
from hfx.exporter.source import Checkpoint
from hfx.local import Device
from hfx.names import check_name, default_name
from hfx.releases import Release, release

if TYPE_CHECKING:
    from hfx.exporter.encoder.kinds.kind import EncoderKind
    from hfx.exporter.generation.tasks import GenerationTask

# What made the graph: hfx's own blocks from a generator's tensors, torch's tracer, or optimum.
Graph = Literal["own", "traced", "optimum"]
# The requested precision -> the precisions for CPU and GPU.
PRECISIONS: Mapping[str | None, tuple[Precision, Precision]] = {
    None: ("fp32", "fp16"),
    "fp32": ("fp32", "fp32"),
    "int8": ("int8", "fp16"),
    "int4": ("int4", "fp16"),
    "fp16": ("fp16", "fp16"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The fields of every plan.

    A precision is None if nothing is built for that device. `max_length` is in tokens. `notes` are shown to the user
    before any work.
    """

    name: str
    kind: EncoderKind | GenerationTask
    checkpoint: Checkpoint
    repository: Path
    cpu_precision: Precision | None
    gpu_precision: Precision | None
    cpu_runtime: CpuRuntime
    graph: Graph
    max_length: int
    release: Release
    threads: int
    verify_data: tuple[Path, ...]
    max_drop: float | None
    force: bool
    command: str
    notes: tuple[str, ...] = ()

    @property
    def built(self) -> dict[Device, Precision]:
        """The devices that something is built for, with their precisions."""
        both: dict[Device, Precision | None] = {"cpu": self.cpu_precision, "gpu": self.gpu_precision}
        return {device: precision for device, precision in both.items() if precision}

    def details(self) -> dict[str, object]:
        """Return what `describe` adds for the fields that only plans of this kind have."""
        return {}

    def describe(self) -> dict[str, object]:
        """Return the plan as `--dry-run` prints it."""
        return {
            "name": self.name,
            "task": str(self.kind.task),
            "source": self.checkpoint.id,
            "revision": self.checkpoint.revision,
            "architecture": self.checkpoint.architecture,
            "repository": str(self.repository),
            "precision": {"cpu": self.cpu_precision, "gpu": self.gpu_precision},
            "cpu_runtime": self.cpu_runtime,
            "graph": self.graph,
            "triton": self.release.tag,
            "max_length": self.max_length,
            **self.details(),
            "threads": self.threads,
            "verify_data": [str(path) for path in self.verify_data],
            "max_drop": self.max_drop,
            "replaces": self.force and (self.repository / self.name).exists(),
        }


def common_fields(checkpoint: Checkpoint, options: ExportOptions, int4: bool) -> dict[str, Any]:
    """Return the fields of a Plan that its kind does not decide; `int4` says whether the kind has this precision.

    Raises UsageError for a refused option.
    """
    target = release(options.triton)
    if options.max_drop is not None and not 0 <= options.max_drop <= 1:
        raise UsageError(f"--max-drop {options.max_drop} is out of range.", "It is a share: 0.01 is one point of 100.")
    for path in options.verify_data:
        if not path.is_file():
            raise UsageError(
                f"There is no file {path} (--verify-data).", "Give a CSV, TSV, JSON-lines or Parquet file."
            )
    cpu, gpu = _precisions(options, int4)
    _check_cpu_runtime(options.cpu_runtime, cpu)
    return {
        "name": check_name(options.name) if options.name else default_name(checkpoint.id),
        "checkpoint": checkpoint,
        "repository": options.repository,
        "cpu_precision": cpu,
        "gpu_precision": gpu,
        "cpu_runtime": options.cpu_runtime,
        "release": target,
        "threads": os.cpu_count() or 1,
        "verify_data": options.verify_data,
        "max_drop": options.max_drop,
        "force": options.force,
        "command": options.command,
    }


def refuse_options(options: ExportOptions, others: Mapping[str, str], task: str) -> None:
    """Raise UsageError if an option of the other kind was given; `others` maps fields to option names."""
    for field, option in others.items():
        if getattr(options, field) != getattr(ExportOptions, field):
            raise UsageError(f"The export of a {task} model does not take {option}.", f"Leave {option} out.")


def _precisions(options: ExportOptions, int4: bool) -> tuple[Precision | None, Precision | None]:
    """Return the precisions for CPU and GPU (None: nothing is built).

    Raises UsageError for a precision that a device or the kind does not have.
    """
    precision = "int8" if options.quantize else options.precision
    if precision not in PRECISIONS or (precision == "int4" and not int4):
        kind, integers = ("generators", "int8 or int4") if int4 else ("encoder tasks", "int8")
        raise UsageError(f"--precision {precision} is not for {kind}.", f"Choose fp32, fp16 (GPU) or {integers} (CPU).")
    if precision == "fp16" and options.device != "gpu":
        raise UsageError(
            "fp16 is for GPUs: no CPU runtime computes faster in it.", "Add --device gpu, or use --quantize."
        )
    cpu, gpu = PRECISIONS[precision]
    if int4:  # a generator: ONNX Runtime's attention on CUDA has no float32
        gpu = "fp16"
    if gpu != (precision or gpu) and options.device == "gpu":
        raise UsageError(f"{precision} is for CPUs; the GPU file is fp16.", "Leave it out, or use --device both.")
    return (cpu if options.device != "gpu" else None), (gpu if options.device != "cpu" else None)


def _check_cpu_runtime(runtime: CpuRuntime, precision: Precision | None) -> None:
    """Raise UsageError if `runtime` can't serve the CPU file in `precision` (None: there is no file)."""
    if runtime != "auto" and precision is None:
        raise UsageError(
            f"--cpu-runtime {runtime} is for CPUs, and nothing is built for one.", "Leave it out, or use --device both."
        )
    if runtime == "native" and precision not in ("int8", "int4"):
        raise UsageError(
            f"--cpu-runtime native is for int8 and int4, not {precision}.",
            "Add --quantize, or leave --cpu-runtime out.",
        )
