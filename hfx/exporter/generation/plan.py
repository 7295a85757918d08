"""The plan of a generator's export.

If the checkpoint has no generation_config.json, this module imports transformers, and with it torch: token ids that
config.json leaves out are then the defaults of its class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.config_file import tokenizer_limit
from hfx.exporter.generation.settings import GenerationSettings, read_settings
from hfx.exporter.generation.tasks import GenerationTask, choose_task
from hfx.exporter.graph.blocks import Kind
from hfx.exporter.mixed_precision import FINER
from hfx.exporter.options import ExportOptions, checked_max_length
from hfx.exporter.plan import GENERATORS, Plan, common_fields, refuse_options
from hfx.exporter.quantize.generator import FORMATS_TRIED, Formats
from hfx.exporter.source import Checkpoint
from hfx.exporter.transformers_versions import refuse_misread
from hfx.local import Device
from hfx.python_backends.engine.engine import DEFAULT_SLOTS

ENCODER_OPTIONS = {
    "max_batch_size": "--max-batch-size",
    "aggregation": "--aggregation",
    "answer": "--answer",
    "system": "--system",
    "exporter": "--exporter optimum",
    "cpu_math": "--cpu-math",
    "calibrate": "--calibrate",
    "threshold": "--threshold",
    "safe_label": "--safe-label",
    "dimensions": "--dimensions",
    "token_vectors": "--token-vectors",
}
BEAMS = (1, 2, 3, 4, 5, 6, 8)  # the numbers of beams that an encoder-decoder has graphs for
LARGEST_SLOTS = 1024
QUEUED_A_SLOT = 16  # queued requests for each slot; further requests are refused
FALLBACK_LENGTH = 512  # T5's length in training; its positions have no limit
LONGEST_UNBOUNDED = 32_768  # tokens; memory and time are the limit before that


@dataclass(frozen=True, kw_only=True)
class GeneratorPlan(Plan):
    """The plan of a generator's export.

    `max_length` is the limit in tokens of a decoder's prompt and output together, or of an encoder-decoder's output.
    `max_source` is the limit of the text that an encoder reads (None without an encoder). `slots` rows are decoded at a
    time, and `max_queue` requests may be queued.
    """

    kind: GenerationTask
    settings: GenerationSettings
    max_source: int | None
    slots: int
    max_queue: int

    def formats(self, device: Device) -> tuple[Formats, ...]:
        """Return the formats to try for a device, the fastest first."""
        tried = FORMATS_TRIED[self.built[device]]
        kept = self.searched.kept if self.searched and self.built[device] in FINER else ()
        return (replace(tried[-1], kept=kept),) if kept else tried

    def details(self) -> dict[str, object]:
        """Return the entries that `describe` shows for a generator."""
        return {
            "max_source": self.max_source,
            "slots": self.slots,
            "max_queue": self.max_queue,
            "defaults": dict(self.settings.defaults),
            "prefix": self.settings.prefix,
        }


def make_generator_plan(checkpoint: Checkpoint, options: ExportOptions) -> GeneratorPlan:
    """Decide everything about the export of a generator.

    Raises UsageError or CheckpointUnsupported if it can't be exported.
    """
    from hfx.exporter.families import find_family

    family = find_family(checkpoint)
    refuse_misread(checkpoint)
    task = choose_task(checkpoint, family.kind, options.task)
    refuse_options(options, ENCODER_OPTIONS, task.task)
    _refuse_half(checkpoint, task.net_kind)
    common = common_fields(checkpoint, options, GENERATORS)
    positions, source = longest_texts(checkpoint, task.net_kind)
    notes: tuple[str, ...] = ()
    if family.unbounded and options.max_length is None:
        notes = (f"Texts have at most {positions} tokens, this model's default; --max-length takes more.",)
    elif family.unbounded:
        positions = source = LONGEST_UNBOUNDED
    length = checked_max_length(options.max_length, max(positions, source or 0))
    settings = read_settings(checkpoint, task, min(length, positions))
    beams = int(settings.defaults.get("num_beams", 1))
    _refuse_beams(checkpoint, task.net_kind, beams)
    slots = _slots(options.slots, beams)
    return GeneratorPlan(
        **common,
        kind=task,
        graph="own",
        settings=settings,
        max_length=min(length, positions),
        max_source=None if source is None else min(length, source),
        slots=slots,
        max_queue=QUEUED_A_SLOT * slots,
        notes=notes,
    )


def longest_texts(checkpoint: Checkpoint, kind: Kind) -> tuple[int, int | None]:
    """Return the decoder's number of positions, and the most tokens that an encoder reads (None without an encoder).

    The positions of a decoder without an encoder hold prompt and output together.
    """
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
    """Refuse a decoder without its encoder (BartForCausalLM), as its graph is another one."""
    if kind == "encoder-decoder" and checkpoint.config.get("is_encoder_decoder") is False:
        raise CheckpointUnsupported(
            f"{checkpoint.id} ({checkpoint.architecture or checkpoint.model_type}) is the decoder of an "
            "encoder-decoder, without its encoder.",
            "Pass the whole checkpoint.",
        )


def _refuse_beams(checkpoint: Checkpoint, kind: Kind, beams: int) -> None:
    """Refuse a number of beams for which an encoder-decoder has no graph."""
    if kind == "encoder-decoder" and beams not in BEAMS:
        raise CheckpointUnsupported(
            f"{checkpoint.id} searches with {beams} beams by default (num_beams).",
            f"Set num_beams in generation_config.json to one of {', '.join(map(str, BEAMS))}.",
        )


def _slots(requested: int | None, beams: int) -> int:
    slots = DEFAULT_SLOTS if requested is None else requested
    if not 1 <= slots <= LARGEST_SLOTS:
        raise UsageError(f"--slots {slots} is out of range.", f"Choose 1 to {LARGEST_SLOTS}.")
    if slots < beams:
        raise UsageError(
            f"--slots {slots} can't hold the {beams} beams that this checkpoint searches with.",
            f"Choose {beams} to {LARGEST_SLOTS}.",
        )
    return slots
