"""The frozen ExportPlan: all that will be built, decided and checked before any work is done.

Reads a checkpoint's small JSON files and the options; loads no weight and imports no torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.config_file import read_json
from hfx.exporter.sentence_transformers import read_max_length, read_pooling
from hfx.exporter.source import Checkpoint
from hfx.exporter.tasks import EncoderTask, find_task, infer_task
from hfx.exporter.tasks.token_classification import AGGREGATIONS, DEFAULT_AGGREGATION
from hfx.names import Task, check_name, default_name
from hfx.releases import DEFAULT_TAG, Release, release

Precision = Literal["fp32", "fp16", "int8"]
Device = Literal["cpu", "gpu", "both"]
CpuRuntime = Literal["auto", "openvino", "onnxruntime"]

# optimum's recommended minimum for most encoders, and below the maximum of every release in the table.
OPSET = 18
DEFAULT_MAX_BATCH_SIZE = 64
LARGEST_MAX_BATCH_SIZE = 1024
# Sequences are padded to the next of these. Padding is compute: on a mix of sentences and paragraphs these waste 9 %,
# doubling widths 39 %. 16 is the least: below it, OpenVINO's vector kernels take another path and the last bit of an
# answer would depend on its neighbours' lengths.
WIDTHS = (
    *range(16, 65, 8),
    *range(80, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
    *range(2304, 4097, 256),
)
SMALLEST_MAX_LENGTH = 8  # room for the special tokens of a pair and a few words
NO_LIMIT = 1_000_000  # transformers writes 1e30 where a tokenizer has no limit of its own
FALLBACK_MAX_LENGTH = 512
# Position tables of these begin after the padding position: 514 rows for 512 tokens.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "data2vec-text", "esm", "ibert", "longformer")


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for; None is "you choose"."""

    name: str | None = None
    task: str | None = None
    precision: str | None = None
    device: Device = "both"
    cpu_runtime: CpuRuntime = "auto"
    repository: Path = Path("model_repository")
    triton: str = DEFAULT_TAG
    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    max_length: int | None = None
    aggregation: str | None = None
    verify_data: tuple[Path, ...] = ()
    max_drop: float | None = None
    force: bool = False
    command: str = "hfx export"


@dataclass(frozen=True)
class ExportPlan:
    """What will be built. `cpu_precision` or `gpu_precision` is None where nothing is built for that device."""

    name: str
    task: EncoderTask
    checkpoint: Checkpoint
    repository: Path
    cpu_precision: Precision | None
    gpu_precision: Precision | None
    cpu_runtime: CpuRuntime
    release: Release
    opset: int
    max_batch_size: int
    max_length: int
    widths: tuple[int, ...]
    threads: int
    aggregation: str | None
    verify_data: tuple[Path, ...]
    max_drop: float | None
    force: bool
    command: str

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
            "triton": self.release.tag,
            "onnxruntime": self.release.ort,
            "opset": self.opset,
            "max_batch_size": self.max_batch_size,
            "max_length": self.max_length,
            "widths": list(self.widths),
            "threads": self.threads,
            "aggregation": self.aggregation,
            "verify_data": [str(path) for path in self.verify_data],
            "max_drop": self.max_drop,
            "replaces": self.force and (self.repository / self.name).exists(),
        }


def make_plan(checkpoint: Checkpoint, options: ExportOptions) -> ExportPlan:
    """Decide everything about the export of `checkpoint`; UsageError or CheckpointUnsupported where it can't be."""
    task = find_task(options.task) if options.task else infer_task(checkpoint)
    settings = task.postprocess_settings
    if settings is not None:
        settings(checkpoint.config)  # refuses a config that lacks what the task needs, before any work
    if task.headless:
        read_pooling(checkpoint.folder)
    target = release(options.triton)
    cpu, gpu = _precisions(options)
    longest = longest_input(checkpoint, task)
    max_length = _checked_max_length(options.max_length, longest)
    if not 1 <= options.max_batch_size <= LARGEST_MAX_BATCH_SIZE:
        raise UsageError(
            f"--max-batch-size {options.max_batch_size} is out of range.", f"Choose 1 to {LARGEST_MAX_BATCH_SIZE}."
        )
    if options.max_drop is not None and not 0 <= options.max_drop <= 1:
        raise UsageError(f"--max-drop {options.max_drop} is out of range.", "It is a share: 0.01 is one point of 100.")
    for path in options.verify_data:
        if not path.is_file():
            raise UsageError(f"There is no file {path} (--verify-data).", "Pass a CSV or TSV file with a header.")
    return ExportPlan(
        name=check_name(options.name) if options.name else default_name(checkpoint.id),
        task=task,
        checkpoint=checkpoint,
        repository=options.repository,
        cpu_precision=cpu,
        gpu_precision=gpu,
        cpu_runtime=options.cpu_runtime,
        release=target,
        opset=OPSET,
        max_batch_size=options.max_batch_size,
        max_length=max_length,
        widths=widths_up_to(max_length),
        threads=os.cpu_count() or 1,
        aggregation=_aggregation(options.aggregation, task),
        verify_data=options.verify_data,
        max_drop=options.max_drop,
        force=options.force,
        command=options.command,
    )


def widths_up_to(max_length: int) -> tuple[int, ...]:
    """The widths of a model that reads `max_length` tokens; the last one is `max_length` itself."""
    return (*(width for width in WIDTHS if width < max_length), max_length)


def _precisions(options: ExportOptions) -> tuple[Precision | None, Precision | None]:
    table: dict[str | None, tuple[Precision, Precision]] = {
        None: ("fp32", "fp16"),
        "fp32": ("fp32", "fp32"),
        "int8": ("int8", "fp16"),
        "fp16": ("fp16", "fp16"),
    }
    if options.precision not in table:
        raise UsageError(
            f"--precision {options.precision} is not for encoder tasks.", "Choose fp32, fp16 (GPU) or int8 (CPU)."
        )
    if options.precision == "fp16" and options.device != "gpu":
        raise UsageError(
            "fp16 is for GPUs: no CPU runtime computes faster in it.", "Add --device gpu, or use --quantize."
        )
    if options.precision == "int8" and options.device == "gpu":
        raise UsageError("int8 is for CPUs; the GPU file is fp16.", "Leave --quantize out, or use --device both.")
    cpu, gpu = table[options.precision]
    return (cpu if options.device != "gpu" else None), (gpu if options.device != "cpu" else None)


def _aggregation(wanted: str | None, task: EncoderTask) -> str | None:
    """How tokens are joined to entities; None for every other task."""
    if task.task is not Task.TOKEN_CLASSIFICATION:
        if wanted:
            raise UsageError(f"--aggregation is for token-classification, not {task.task}.", "Leave it out.")
        return None
    if wanted not in (None, *AGGREGATIONS):
        raise UsageError(f"There is no aggregation {wanted!r}.", f"Choose one of {', '.join(AGGREGATIONS)}.")
    return wanted or DEFAULT_AGGREGATION


def longest_input(checkpoint: Checkpoint, task: EncoderTask) -> int:
    """Tokens, special ones included, that the checkpoint reads at most: the least of what its files say."""
    config, limits = checkpoint.config, []
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions > 0:
        padding = config.get("pad_token_id")
        offset = (padding if isinstance(padding, int) else 1) + 1 if checkpoint.model_type in OFFSET_POSITIONS else 0
        limits.append(positions - offset)
    tokenizer = checkpoint.folder / "tokenizer_config.json"
    stated = read_json(tokenizer).get("model_max_length") if tokenizer.is_file() else None
    if isinstance(stated, int | float) and 0 < stated < NO_LIMIT:
        limits.append(int(stated))
    if task.task is Task.FEATURE_EXTRACTION and (trained := read_max_length(checkpoint.folder)):
        limits.append(trained)
    if task.longest:
        limits.append(task.longest)
    return min(limits, default=FALLBACK_MAX_LENGTH)


def _checked_max_length(wanted: int | None, longest: int) -> int:
    if longest < SMALLEST_MAX_LENGTH:
        raise CheckpointUnsupported(
            f"By its files, this checkpoint reads at most {longest} tokens.",
            "Correct max_position_embeddings (config.json) or model_max_length (tokenizer_config.json).",
        )
    if wanted is None:
        return longest
    if not SMALLEST_MAX_LENGTH <= wanted <= longest:
        raise UsageError(
            f"--max-length {wanted} is out of range.",
            f"This checkpoint reads {SMALLEST_MAX_LENGTH} to {longest} tokens.",
        )
    return wanted
