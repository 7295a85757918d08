"""The frozen plan of an export: all that will be built, decided and checked before any work is done.

Owns the plan of encoders and the choice between kinds of models. Reads a checkpoint's small JSON files and the
options; loads no weight and imports no torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hfx.errors import UsageError
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.encoders import ENCODERS, Encoder, check_encoder
from hfx.exporter.generation.plan import GeneratorPlan, make_generator_plan
from hfx.exporter.generation.tasks import is_generator
from hfx.exporter.options import (
    GENERATOR_OPTIONS,
    CpuRuntime,
    Exporter,
    ExportOptions,
    Graph,
    Precision,
    checked_max_length,
    precisions,
    refuse_foreign,
    shared_plan,
)
from hfx.exporter.sentence_transformers import read_max_length, read_pooling
from hfx.exporter.source import Checkpoint
from hfx.exporter.tasks import ALIASES, EncoderTask, find_task, infer_task
from hfx.exporter.tasks.token_classification import AGGREGATIONS, DEFAULT_AGGREGATION
from hfx.names import Task
from hfx.releases import Release

# LayerNormalization is one operator from 17 on; below the maximum of every release in the table.
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
    *range(4608, 8193, 512),
)
FALLBACK_MAX_LENGTH = 512
PRECISIONS: Mapping[str | None, tuple[Precision, Precision]] = {
    None: ("fp32", "fp16"),
    "fp32": ("fp32", "fp32"),
    "int8": ("int8", "fp16"),
    "fp16": ("fp16", "fp16"),
}


@dataclass(frozen=True)
class ExportPlan:
    """What will be built of an encoder. A precision is None where nothing is built for that device."""

    name: str
    task: EncoderTask
    checkpoint: Checkpoint
    repository: Path
    cpu_precision: Precision | None
    gpu_precision: Precision | None
    cpu_runtime: CpuRuntime
    exporter: Exporter
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

    @property
    def graph(self) -> Graph:
        """By what the graph is made."""
        return "optimum" if self.exporter == "optimum" else "traced"

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


Plan = ExportPlan | GeneratorPlan


def make_plan(checkpoint: Checkpoint, options: ExportOptions) -> Plan:
    """Decide everything about the export of `checkpoint`; UsageError or CheckpointUnsupported where it can't be."""
    if options.task in ALIASES:
        options = replace(options, task=ALIASES[options.task])
    if is_generator(checkpoint, options.task):
        return make_generator_plan(checkpoint, options)
    return make_encoder_plan(checkpoint, options)


def make_encoder_plan(checkpoint: Checkpoint, options: ExportOptions) -> ExportPlan:
    """Decide everything about the export of an encoder."""
    task = find_task(options.task) if options.task else infer_task(checkpoint)
    refuse_foreign(options, GENERATOR_OPTIONS, task.task)
    check_encoder(checkpoint, task.task)
    _check_exporter(options.exporter)
    settings = task.postprocess_settings
    if settings is not None:
        settings(checkpoint.config)  # refuses a config that lacks what the task needs, before any work
    if task.headless:
        read_pooling(checkpoint.folder)
    cpu, gpu = precisions(options, PRECISIONS, "encoder tasks", "fp32, fp16 (GPU) or int8 (CPU)")
    max_length = checked_max_length(options.max_length, longest_input(checkpoint, task), task.shortest)
    return ExportPlan(
        **shared_plan(checkpoint, options),
        task=task,
        cpu_precision=cpu,
        gpu_precision=gpu,
        cpu_runtime=options.cpu_runtime,
        exporter=options.exporter,
        opset=OPSET,
        max_batch_size=_max_batch_size(options.max_batch_size),
        max_length=max_length,
        widths=widths_up_to(max_length),
        aggregation=_aggregation(options.aggregation, task),
    )


def _check_exporter(exporter: Exporter) -> None:
    if exporter == "optimum" and importlib.util.find_spec("optimum") is None:
        raise UsageError(
            "--exporter optimum needs optimum, which is not installed.",
            "Leave it out, or install hfx[optimum] in an environment of its own: optimum wants transformers 4.57.",
        )


def widths_up_to(max_length: int) -> tuple[int, ...]:
    """The widths of a model that reads `max_length` tokens; the last one is `max_length` itself."""
    return (*(width for width in WIDTHS if width < max_length), max_length)


def _max_batch_size(wanted: int | None) -> int:
    chosen = DEFAULT_MAX_BATCH_SIZE if wanted is None else wanted
    if not 1 <= chosen <= LARGEST_MAX_BATCH_SIZE:
        raise UsageError(f"--max-batch-size {chosen} is out of range.", f"Choose 1 to {LARGEST_MAX_BATCH_SIZE}.")
    return chosen


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
        encoder = ENCODERS.get(checkpoint.model_type, Encoder())
        offset = (padding if isinstance(padding, int) else 1) + 1 if encoder.positions_after_padding else 0
        limits.append(positions - offset)
    if (stated := tokenizer_limit(checkpoint.folder)) is not None:
        limits.append(stated)
    if task.task is Task.FEATURE_EXTRACTION and (trained := read_max_length(checkpoint.folder)):
        limits.append(trained)
    if task.longest:
        limits.append(task.longest)
    return min(limits, default=FALLBACK_MAX_LENGTH)
