"""What the user asked of an export, and the part of every plan that does not depend on the kind of model.

Owns the checks of options that encoders and generators share. It must not know tasks, graphs or weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.source import Checkpoint
from hfx.names import check_name, default_name
from hfx.releases import DEFAULT_TAG, Release, release

Precision = Literal["fp32", "fp16", "int8", "int4"]
Device = Literal["cpu", "gpu", "both"]
CpuRuntime = Literal["auto", "openvino", "onnxruntime"]
Exporter = Literal["own", "optimum"]
# By what a graph was made: hfx's own blocks from a generator's tensors, torch's tracer, or optimum.
Graph = Literal["own", "traced", "optimum"]
P = TypeVar("P", bound=Precision)

# Options that only one kind of model takes: field -> how it is typed.
ENCODER_OPTIONS = {
    "max_batch_size": "--max-batch-size",
    "aggregation": "--aggregation",
    "exporter": "--exporter optimum",
}
GENERATOR_OPTIONS = {"slots": "--slots"}
SHORTEST = 8  # tokens: room for the special ones of a pair and a few words


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for; None is "you choose"."""

    name: str | None = None
    task: str | None = None
    precision: str | None = None
    device: Device = "both"
    cpu_runtime: CpuRuntime = "auto"
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


class SharedPlan(TypedDict):
    """The fields that every plan has, whatever is built."""

    name: str
    checkpoint: Checkpoint
    repository: Path
    release: Release
    threads: int
    verify_data: tuple[Path, ...]
    max_drop: float | None
    force: bool
    command: str


def shared_plan(checkpoint: Checkpoint, options: ExportOptions) -> SharedPlan:
    """The shared fields of the plan for `checkpoint`; UsageError for an option that can't be taken."""
    target = release(options.triton)
    if options.max_drop is not None and not 0 <= options.max_drop <= 1:
        raise UsageError(f"--max-drop {options.max_drop} is out of range.", "It is a share: 0.01 is one point of 100.")
    for path in options.verify_data:
        if not path.is_file():
            raise UsageError(f"There is no file {path} (--verify-data).", "Pass a CSV or TSV file with a header.")
    return SharedPlan(
        name=check_name(options.name) if options.name else default_name(checkpoint.id),
        checkpoint=checkpoint,
        repository=options.repository,
        release=target,
        threads=os.cpu_count() or 1,
        verify_data=options.verify_data,
        max_drop=options.max_drop,
        force=options.force,
        command=options.command,
    )


def refuse_foreign(options: ExportOptions, foreign: Mapping[str, str], task: str) -> None:
    """Raise UsageError where an option was given that is for the other kind of model."""
    for field, option in foreign.items():
        if getattr(options, field) != getattr(ExportOptions, field):
            raise UsageError(f"The export of a {task} model does not take {option}.", f"Leave {option} out.")


def precisions(
    options: ExportOptions, table: Mapping[str | None, tuple[P, P]], kind: str, choices: str
) -> tuple[P | None, P | None]:
    """What is built for CPU and GPU (None: nothing), by the `table` of what each asked precision means for a kind.

    `kind` and `choices` are words for the message. Raises UsageError for what a device has not.
    """
    asked = options.precision
    if asked not in table:
        raise UsageError(f"--precision {asked} is not for {kind}.", f"Choose {choices}.")
    if asked == "fp16" and options.device != "gpu":
        raise UsageError(
            "fp16 is for GPUs: no CPU runtime computes faster in it.", "Add --device gpu, or use --quantize."
        )
    if asked in ("int8", "int4") and options.device == "gpu":
        raise UsageError(f"{asked} is for CPUs; the GPU file is fp16.", "Leave it out, or use --device both.")
    cpu, gpu = table[asked]
    return (cpu if options.device != "gpu" else None), (gpu if options.device != "cpu" else None)


def checked_max_length(wanted: int | None, longest: int, shortest: int = SHORTEST) -> int:
    """`--max-length`, or what the checkpoint reads, which must be `shortest` at least.

    Raises UsageError or CheckpointUnsupported outside of what is possible.
    """
    if longest < shortest:
        raise CheckpointUnsupported(
            f"By its files, this checkpoint reads at most {longest} tokens; {shortest} are needed for its task.",
            "Correct max_position_embeddings (config.json) or model_max_length (tokenizer_config.json).",
        )
    if wanted is None:
        return longest
    if not shortest <= wanted <= longest:
        raise UsageError(
            f"--max-length {wanted} is out of range.",
            f"This checkpoint reads {shortest} to {longest} tokens.",
        )
    return wanted
