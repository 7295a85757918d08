"""The frozen plan of an export: everything that will be built, decided and checked before any work is done.

A plan is made of the options, a checkpoint's small JSON files, and the names and shapes of its tensors. The kinds of
plans are in encoder/plan.py and generation/plan.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hfx.errors import UsageError
from hfx.exporter.mixed_precision import FINER, Precision, Search
from hfx.exporter.options import CpuRuntime, ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.local import Device
from hfx.names import check_name, default_name
from hfx.releases import Release, release

if TYPE_CHECKING:
    from hfx.exporter.encoder.kinds.kind import EncoderKind
    from hfx.exporter.generation.tasks import GenerationTask

# What made the graph: hfx's own blocks from a generator's tensors, torch's tracer, or optimum.
Graph = Literal["own", "traced", "optimum"]
# From opset 17 on, LayerNormalization is one operator. 18 is below the maximum of every release in releases.py.
OPSET = 18
DEVICES: Mapping[str, tuple[Device, ...]] = {"cpu": ("cpu",), "gpu": ("gpu",), "both": ("cpu", "gpu")}


@dataclass(frozen=True)
class Precisions:
    """The precisions of the files of `models`: for each device, the requested precision -> that of the file."""

    models: str
    cpu: Mapping[str | None, Precision]
    gpu: Mapping[str | None, Precision]

    @property
    def quantized(self) -> list[Precision]:
        """The precisions of files with integers."""
        return [precision for precision in self.cpu.values() if precision in FINER]

    def of(self, options: ExportOptions) -> dict[Device, Precision]:
        """Return the precisions of the files that are built. Raises UsageError for one that there is not."""
        asked = "int8" if options.quantize else options.precision
        if options.searched is not None and options.searched.precision not in FINER:
            asked = None  # an earlier export has found that no quantized file passes
        devices, integers = DEVICES[options.device], " or ".join(self.quantized)
        if asked not in self.gpu:
            raise UsageError(
                f"--precision {asked} is not for {self.models}.", f"Choose fp32, fp16 (GPU) or {integers} (CPU)."
            )
        if "cpu" in devices and asked not in self.cpu:
            raise UsageError(
                f"{asked} is for GPUs: no CPU runtime computes faster in it.", "Add --device gpu, or use --quantize."
            )
        if "cpu" not in devices and asked not in (None, self.gpu[asked]):
            raise UsageError(
                f"{asked} is for CPUs; the GPU file is {self.gpu[asked]}.", "Leave it out, or use --device both."
            )
        tables: dict[Device, Mapping[str | None, Precision]] = {"cpu": self.cpu, "gpu": self.gpu}
        return {device: tables[device][asked] for device in devices}


ENCODERS = Precisions(
    "encoder tasks",
    {None: "fp32", "fp32": "fp32", "int8": "int8"},
    {None: "fp16", "fp32": "fp32", "int8": "fp16", "fp16": "fp16"},
)
# ONNX Runtime's attention on CUDA has no float32.
GENERATORS = Precisions(
    "generators",
    {None: "fp32", "fp32": "fp32", "int8": "int8", "int4": "int4"},
    dict.fromkeys((None, "fp32", "int8", "int4", "fp16"), "fp16"),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The fields of every plan.

    `built` has the devices that something is built for, with the precisions. `max_length` is in tokens. `notes` are
    shown to the user before any work. A `strict` export publishes the precision that was asked for, or nothing.
    `searched` is what an earlier export found out about it, and is repeated. `parameters` are written into the
    configuration of NAME.
    """

    name: str
    kind: EncoderKind | GenerationTask
    checkpoint: Checkpoint
    repository: Path
    built: dict[Device, Precision]
    cpu_runtime: CpuRuntime
    graph: Graph
    max_length: int
    release: Release
    threads: int
    verify_data: tuple[Path, ...]
    max_drop: float | None
    force: bool
    command: str
    strict: bool
    searched: Search | None
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_runtime(self) -> bool:
        """Whether the user has named the runtime for CPUs."""
        return self.cpu_runtime != "auto"

    def searches(self, device: Device) -> bool:
        """Return whether the export searches for another file for `device` if the gate refuses its own."""
        return self.built[device] in FINER and not self.strict and self.searched is None

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
            "precision": {device: self.built.get(device) for device in DEVICES["both"]},
            "cpu_runtime": self.cpu_runtime,
            "graph": self.graph,
            "triton": self.release.tag,
            "max_length": self.max_length,
            **self.details(),
            "strict": self.strict if self.built.get("cpu") in FINER else None,
            "threads": self.threads,
            "verify_data": [str(path) for path in self.verify_data],
            "max_drop": self.max_drop,
            "replaces": self.force and (self.repository / self.name).exists(),
        }


def common_fields(checkpoint: Checkpoint, options: ExportOptions, precisions: Precisions) -> dict[str, Any]:
    """Return the fields of a Plan that its kind does not decide; `precisions` are those of its kind.

    Raises UsageError for a refused option.
    """
    target = release(options.triton)
    if options.max_drop is not None and not 0 <= options.max_drop <= 1:
        raise UsageError(f"--max-drop {options.max_drop} is out of range.", "It is a share: 0.01 is one point of 100.")
    data = tuple(dict.fromkeys((*options.verify_data, *filter(None, [options.calibrate]))))
    for path in data:
        if not path.is_file():
            raise UsageError(
                f"There is no file {path} of labelled rows.", "Give a CSV, TSV, JSON-lines or Parquet file."
            )
    built = precisions.of(options)
    _check_cpu_runtime(options.cpu_runtime, built.get("cpu"), precisions)
    if options.strict and built.get("cpu") not in FINER:
        files = " and ".join(precisions.quantized)
        raise UsageError(f"--strict is for files in {files}.", "Leave it out, or add --quantize.")
    return {
        "name": check_name(options.name) if options.name else default_name(checkpoint.id),
        "checkpoint": checkpoint,
        "repository": options.repository,
        "built": built,
        "cpu_runtime": options.cpu_runtime,
        "release": target,
        "threads": os.cpu_count() or 1,
        "verify_data": data,
        "max_drop": options.max_drop,
        "force": options.force,
        "command": options.command,
        "strict": options.strict,
        "searched": options.searched,
    }


def refuse_options(options: ExportOptions, others: Mapping[str, str], task: str) -> None:
    """Raise UsageError if an option of the other kind was given; `others` maps fields to option names."""
    for name, option in others.items():
        if getattr(options, name) != getattr(ExportOptions, name):
            raise UsageError(f"The export of a {task} model does not take {option}.", f"Leave {option} out.")


def _check_cpu_runtime(runtime: CpuRuntime, precision: Precision | None, precisions: Precisions) -> None:
    """Raise UsageError if `runtime` can't serve the CPU file in `precision` (None: there is no file)."""
    if runtime != "auto" and precision is None:
        raise UsageError(
            f"--cpu-runtime {runtime} is for CPUs, and nothing is built for one.", "Leave it out, or use --device both."
        )
    if runtime == "native" and precisions is GENERATORS and precision not in FINER:
        raise UsageError(
            f"--cpu-runtime native of generators is for int8 and int4, not {precision}.",
            "Add --quantize, or leave --cpu-runtime out.",
        )
