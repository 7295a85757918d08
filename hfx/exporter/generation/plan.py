"""The frozen plan of a generator's export: what will be built, decided and checked before any work is done.

Reads a checkpoint's small JSON files and the options; loads no weight and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.generation.settings import GenerationSettings, read_settings
from hfx.exporter.generation.tasks import GenerationTask, Kind, choose_task
from hfx.exporter.options import (
    ENCODER_OPTIONS,
    CpuRuntime,
    ExportOptions,
    Graph,
    Precision,
    checked_max_length,
    precisions,
    refuse_foreign,
    shared_plan,
)
from hfx.exporter.source import Checkpoint
from hfx.local import Device
from hfx.python_backends.engine.generation_settings import DEFAULT_SLOTS
from hfx.releases import Release

LARGEST_SLOTS = 1024
QUEUED_A_SLOT = 16  # requests that may wait for each slot before the next is refused
FALLBACK_LENGTH = 512  # what T5 and its kin were trained with; their positions have no end
LONGEST_UNBOUNDED = 32_768  # tokens; memory and patience end before
PRECISIONS: Mapping[str | None, tuple[Precision, Precision]] = {
    None: ("fp32", "fp16"),
    "fp32": ("fp32", "fp32"),
    "int8": ("int8", "fp16"),
    "int4": ("int4", "fp16"),
    "fp16": ("fp16", "fp16"),
}


@dataclass(frozen=True)
class GeneratorPlan:
    """What will be built of a generator. A precision is None where nothing is built for that device.

    `max_length` bounds a decoder's prompt and output together, an encoder-decoder's output; `max_source` the text that
    an encoder reads (None where there is none). `slots` rows are decoded at a time, `max_queue` requests may wait.
    `notes` are for the user, before any work.
    """

    name: str
    task: GenerationTask
    checkpoint: Checkpoint
    repository: Path
    cpu_precision: Precision | None
    gpu_precision: Precision | None
    cpu_runtime: CpuRuntime
    settings: GenerationSettings
    max_length: int
    max_source: int | None
    slots: int
    max_queue: int
    release: Release
    threads: int
    verify_data: tuple[Path, ...]
    max_drop: float | None
    force: bool
    command: str
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """By what the graphs are made."""
        return "own"

    @property
    def built(self) -> dict[Device, Precision]:
        """The devices that something is built for, with their precisions."""
        both: dict[Device, Precision | None] = {"cpu": self.cpu_precision, "gpu": self.gpu_precision}
        return {device: precision for device, precision in both.items() if precision}

    def describe(self) -> dict[str, object]:
        """The plan as it is printed by `--dry-run`."""
        return {
            "name": self.name,
            "task": str(self.task.task),
            "source": self.checkpoint.id,
            "revision": self.checkpoint.revision,
            "architecture": self.checkpoint.architecture,
            "repository": str(self.repository),
            "precision": {"cpu": self.cpu_precision, "gpu": self.gpu_precision},
            "cpu_runtime": self.cpu_runtime,
            "graph": self.graph,
            "triton": self.release.tag,
            "max_length": self.max_length,
            "max_source": self.max_source,
            "slots": self.slots,
            "max_queue": self.max_queue,
            "threads": self.threads,
            "defaults": dict(self.settings.defaults),
            "prefix": self.settings.prefix,
            "verify_data": [str(path) for path in self.verify_data],
            "max_drop": self.max_drop,
            "replaces": self.force and (self.repository / self.name).exists(),
        }


def make_generator_plan(checkpoint: Checkpoint, options: ExportOptions) -> GeneratorPlan:
    """Decide everything about the export of a generator; UsageError or CheckpointUnsupported where it can't be."""
    from hfx.exporter.families import find_family

    family = find_family(checkpoint)
    task = choose_task(checkpoint, family.kind, options.task)
    refuse_foreign(options, ENCODER_OPTIONS, task.task)
    _refuse_half(checkpoint, task.kind)
    cpu, gpu = precisions(options, PRECISIONS, "generators", "fp32, fp16 (GPU), int8 or int4 (CPU)")
    positions, source = longest_texts(checkpoint, task.kind)
    notes: tuple[str, ...] = ()
    if family.unbounded and options.max_length is None:
        notes = (f"Texts have at most {positions} tokens, this model's default; --max-length takes more.",)
    elif family.unbounded:
        positions = source = LONGEST_UNBOUNDED
    length = checked_max_length(options.max_length, max(positions, source or 0))
    settings = read_settings(checkpoint, task, min(length, positions))
    beams = int(settings.defaults.get("num_beams", 1))
    _refuse_beams(checkpoint, task.kind, beams)
    slots = _slots(options.slots, beams)
    return GeneratorPlan(
        **shared_plan(checkpoint, options),
        task=task,
        cpu_precision=cpu,
        gpu_precision=gpu,
        cpu_runtime=options.cpu_runtime,
        settings=settings,
        max_length=min(length, positions),
        max_source=None if source is None else min(length, source),
        slots=slots,
        max_queue=QUEUED_A_SLOT * slots,
        notes=notes,
    )


def longest_texts(checkpoint: Checkpoint, kind: Kind) -> tuple[int, int | None]:
    """Positions of the decoder (a decoder's prompt and output together), and tokens that an encoder reads at most."""
    config, limits = checkpoint.config, []
    for name in ("max_position_embeddings", "n_positions"):
        positions = config.get(name)
        if isinstance(positions, int) and not isinstance(positions, bool) and positions > 0:
            limits.append(positions)
    positions = min(limits, default=FALLBACK_LENGTH)
    if kind == "decoder":
        return positions, None
    return positions, min(positions, tokenizer_limit(checkpoint.folder) or positions)


def _refuse_half(checkpoint: Checkpoint, kind: Kind) -> None:
    """A decoder that was cut out of an encoder-decoder (BartForCausalLM) has another graph."""
    if kind == "encoder-decoder" and checkpoint.config.get("is_encoder_decoder") is False:
        raise CheckpointUnsupported(
            f"{checkpoint.id} ({checkpoint.architecture or checkpoint.model_type}) is the decoder of an "
            "encoder-decoder, without its encoder.",
            "Pass the whole checkpoint.",
        )


def _refuse_beams(checkpoint: Checkpoint, kind: Kind, beams: int) -> None:
    """An encoder-decoder has a graph for each number of beams, and not for all numbers."""
    from hfx.exporter.generation.engine_folder import BEAMS

    if kind == "encoder-decoder" and beams not in BEAMS:
        raise CheckpointUnsupported(
            f"{checkpoint.id} searches with {beams} beams by default (num_beams).",
            f"Set num_beams in generation_config.json to one of {', '.join(map(str, BEAMS))}.",
        )


def _slots(wanted: int | None, beams: int) -> int:
    slots = DEFAULT_SLOTS if wanted is None else wanted
    if not 1 <= slots <= LARGEST_SLOTS:
        raise UsageError(f"--slots {slots} is out of range.", f"Choose 1 to {LARGEST_SLOTS}.")
    if slots < beams:
        raise UsageError(
            f"--slots {slots} can't hold the {beams} beams that this checkpoint searches with.",
            f"Choose {beams} to {LARGEST_SLOTS}.",
        )
    return slots
