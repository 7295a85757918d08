"""The plan of an encoder's export. torch is not imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hfx import names
from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.config_file import MATRYOSHKA, tokenizer_limit
from hfx.exporter.encoder.architectures import (
    DECODERS,
    MPNET_PADDING,
    POSITIONS_AFTER_PADDING,
    TEXT_ENCODERS,
    check_encoder,
)
from hfx.exporter.encoder.late_interaction import (
    LateInteraction,
    is_late_interaction,
    read_late_interaction,
    read_token_layers,
    role_ids,
)
from hfx.exporter.encoder.module_list import MODULES, STATIC
from hfx.exporter.encoder.pair_templates import PairTemplate, read_template
from hfx.exporter.encoder.pooling import Pooling
from hfx.exporter.encoder.sentence_transformers import (
    EMBEDDERS_PROMPTS,
    Prompts,
    is_sparse_encoder,
    read_activation,
    read_max_length,
    read_pooling,
    read_prompts,
    read_scoring,
)
from hfx.exporter.encoder.static_embeddings import truncation
from hfx.exporter.options import CpuMath, Exporter, ExportOptions, Precision
from hfx.exporter.plan import Plan, checked_max_length, common_fields, refuse_options
from hfx.exporter.runtime import why_no_openvino
from hfx.exporter.source import Checkpoint
from hfx.exporter.tasks import CAUSAL_MODELS, EncoderTask, find_task, infer_task
from hfx.exporter.tasks.feature_extraction import embedding, of_tokens, width
from hfx.exporter.tasks.fill_mask import vocabulary
from hfx.exporter.tasks.task import default_labels, labels_of
from hfx.exporter.tasks.text_ranking import logits, scoring, templated_ids
from hfx.exporter.tasks.token_classification import AGGREGATIONS, DEFAULT_AGGREGATION
from hfx.names import APPLY_SOFTMAX, DIMENSIONS, PROMPT_NAME, Kind, Task
from hfx.python_backends.onnxruntime.sessions import multiplies_bfloat16
from hfx.python_backends.tasks import PROMPTS
from hfx.tasks.kinds import USUAL

GENERATOR_OPTIONS = {"slots": "--slots"}
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
LANGUAGE_MODEL, CAUSAL_MODEL, TEXT_ENCODER = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForTextEncoding"
LOGITS_BYTES = 512 << 20  # of what a batch has for all of its tokens: logits of which vectors are made, or vectors


@dataclass(frozen=True, kw_only=True)
class EncoderPlan(Plan):
    """What will be built of an encoder; `cpu_math` is what its fp32 file is computed in on the CPU."""

    task: EncoderTask
    kind: Kind
    exporter: Exporter
    cpu_math: CpuMath
    max_batch_size: int
    widths: tuple[int, ...]
    aggregation: str | None
    activation: str | None
    pooling: Pooling | None = None
    prompts: Prompts | None = None
    template: PairTemplate | None = None
    late: LateInteraction | None = None

    @property
    def takes_empty(self) -> bool:
        """Whether a text without tokens has an answer."""
        return self.checkpoint.model_type == STATIC

    def options_of(self, sample: int) -> dict[str, Any]:
        """Options that the gate's request of this number has: each prompt in turn, and half of the vector."""
        prompts = (None, *self.prompts.texts) if self.prompts else (None,)
        prompt, is_cut = prompts[sample % len(prompts)], sample // len(prompts) % 2 == 1
        options: dict[str, Any] = {} if prompt is None else {PROMPT_NAME: prompt}
        if is_cut and DIMENSIONS in self.task.postprocess_reads:
            (embedding,) = self.task.net_outputs(self.checkpoint.config)
            options[DIMENSIONS] = (embedding.dims[0] + 1) // 2
        return options

    def details(self) -> dict[str, object]:
        """What `describe` says of an encoder."""
        return {
            "kind": str(self.kind),
            "cpu_math": self.cpu_math if self.cpu_precision == "fp32" else None,
            "onnxruntime": self.release.ort,
            "opset": OPSET,
            "max_batch_size": self.max_batch_size,
            "widths": list(self.widths),
            "aggregation": self.aggregation,
            "activation": self.activation,
            "pooling": self.pooling.names if self.pooling else None,
            "prompts": list(self.prompts.texts) if self.prompts else None,
            "template": self.template.plain if self.template else None,
        }


def make_encoder_plan(checkpoint: Checkpoint, options: ExportOptions) -> EncoderPlan:
    """Decide everything about the export of an encoder; UsageError or CheckpointUnsupported where it can't be."""
    task = find_task(options.task) if options.task else infer_task(checkpoint)
    refuse_options(options, GENERATOR_OPTIONS, task.task)
    check_encoder(checkpoint, task.task)
    if checkpoint.model_type in TEXT_ENCODERS:
        task = replace(task, auto_class=TEXT_ENCODER)
    _check_exporter(options.exporter)
    pooling = _pooling(checkpoint, task, options.token_vectors)
    if pooling is not None:
        task = _pooled(task, pooling, checkpoint.config)
    elif task.task is Task.TEXT_RANKING:
        task = scoring(task, labels_of(checkpoint.config))
    settings = task.postprocess_settings
    if settings is not None:
        settings(checkpoint.config)  # refuses a config that lacks what the task needs, before any work
    template = _template(checkpoint, task, pooling)
    if template is not None:
        task = replace(task, expected_ids=partial(templated_ids, template.plain, template.prompted))
    prompts = _prompts(checkpoint, task, pooling, template)
    task = _with_options(checkpoint, options, task, has_prompts=prompts is not None)
    common = common_fields(checkpoint, options, int4=False)
    if checkpoint.model_type == STATIC and common["cpu_precision"] == "int8":
        raise UsageError(
            f"{checkpoint.id} looks vectors up in a table: int8 would make nothing faster.",
            "Leave --quantize and --precision out.",
        )
    _check_cpu_math(options, common["cpu_precision"])
    late = _late(checkpoint, task, options.max_length) if pooling is not None and pooling.by_role else None
    if late is not None:
        max_length = late.longest
        task = replace(task, expected_ids=partial(role_ids, late, checkpoint))
    else:
        max_length = checked_max_length(options.max_length, longest_input(checkpoint, task), task.shortest)
    is_static = checkpoint.model_type == STATIC
    if pooling is not None and (pooling.splade or pooling.tokens or is_static):
        numbers = width(checkpoint.config) if is_static else task.net_outputs(checkpoint.config)[0].dims[-1]
        task = replace(task, most_rows=lambda config: max(1, LOGITS_BYTES // (4 * max_length * numbers)))
    return EncoderPlan(
        **common,
        task=task,
        kind=_kind(checkpoint, task, pooling),
        exporter=options.exporter,
        cpu_math=options.cpu_math,
        graph="optimum" if options.exporter == "optimum" else "traced",
        max_batch_size=_max_batch_size(options.max_batch_size, checkpoint, task),
        max_length=max_length,
        widths=widths_up_to(max_length, late),
        aggregation=_aggregation(options.aggregation, task),
        activation=_activation(checkpoint, task),
        pooling=pooling,
        prompts=prompts,
        template=template,
        late=late,
        notes=_notes(checkpoint, options, task, template),
    )


def _kind(checkpoint: Checkpoint, task: EncoderTask, pooling: Pooling | None) -> Kind:
    """The kind of a checkpoint whose task and pooling have been read."""
    if checkpoint.model_type == STATIC:
        return Kind.STATIC
    if pooling is not None and pooling.tokens:
        return Kind.LATE if pooling.by_role else Kind.TOKEN_VECTORS
    if pooling is not None and pooling.splade:
        return Kind.SPARSE
    if task.task is Task.TEXT_RANKING and APPLY_SOFTMAX in task.postprocess_reads:
        return Kind.PAIR_CLASSIFIER
    return Kind.JUDGE if pooling is not None and pooling.answers else USUAL[task.task]


def _pooling(checkpoint: Checkpoint, task: EncoderTask, tokens: bool) -> Pooling | None:
    """What is done with token embeddings behind the transformer, of tasks and cross-encoders that have them."""
    if tokens and checkpoint.model_type == STATIC:
        raise UsageError("--token-vectors is for transformers, not for static embeddings.", "Leave it out.")
    if tokens and (task.task is not Task.FEATURE_EXTRACTION or is_sparse_encoder(checkpoint.folder)):
        what = "sparse vectors" if task.headless else str(task.task)
        raise UsageError(f"--token-vectors is for feature-extraction, not for {what}.", "Leave it out.")
    if task.task is Task.TEXT_RANKING:
        return read_scoring(checkpoint.folder, checkpoint.architecture.endswith(CAUSAL_MODELS))
    if task.headless and is_late_interaction(checkpoint.folder):
        return read_token_layers(checkpoint.folder, width(checkpoint.config))
    return read_pooling(checkpoint.folder, tokens) if task.headless else None


def _late(checkpoint: Checkpoint, task: EncoderTask, requested: int | None) -> LateInteraction:
    """How a ColBERT reads queries and documents, of which the latter may have the `requested` length."""
    late, read = read_late_interaction(checkpoint.folder), longest_input(checkpoint, task)
    longest = longest_input(checkpoint, replace(task, by_library=False), by_tokenizer=False)
    query = replace(late.query, length=late.query.length or min(read, requested or read))
    if query.looks_up:
        query = replace(query, length=min(late.query.length or longest, longest))
    window = checkpoint.config.get("local_attention")
    what = f"Queries for {checkpoint.folder} have {max(query.length, query.least)} tokens"
    if max(query.length, query.least) > longest:
        raise CheckpointUnsupported(
            f"{what}, and the model reads {longest}.", "Correct their length, or max_position_embeddings (config.json)."
        )
    if isinstance(window, int) and late.sees_nothing(window // 2):
        raise CheckpointUnsupported(
            f"{what}, of which the last see no word of a short one (local_attention is {window}): their vectors depend "
            "on torch's attention.",
            "If the model was trained without query expansion, switch it off in its files; else shorten queries.",
        )
    length = min(late.document.length or read, longest) if requested is None else requested
    document = replace(late.document, length=checked_max_length(length, longest, task.shortest))
    return LateInteraction(query, document)


def _pooled(task: EncoderTask, pooling: Pooling, config: Mapping[str, Any]) -> EncoderTask:
    """`task` of a transformer without a head, or with that of a language model, behind which texts are pooled."""
    numbers = pooling.width(vocabulary(config) if pooling.splade else width(config))
    if task.task is Task.FEATURE_EXTRACTION:
        if pooling.tokens:
            return of_tokens(task, numbers)
        task = replace(task, net_outputs=lambda config: embedding(numbers))
        return replace(task, auto_class=LANGUAGE_MODEL, headless=False) if pooling.splade else task
    task = replace(task, net_outputs=lambda config: logits(numbers))
    if pooling.answers:
        task = replace(task, auto_class=CAUSAL_MODEL)
    else:
        task = replace(task, auto_class=find_task(Task.FEATURE_EXTRACTION).auto_class, headless=True)
    return scoring(task, default_labels(numbers))


def _template(checkpoint: Checkpoint, task: EncoderTask, pooling: Pooling | None) -> PairTemplate | None:
    if task.task is not Task.TEXT_RANKING:
        return None
    scores_answers = pooling is not None and bool(pooling.answers)
    return read_template(checkpoint, (checkpoint.folder / MODULES).is_file(), scores_answers)


def _prompts(
    checkpoint: Checkpoint, task: EncoderTask, pooling: Pooling | None, template: PairTemplate | None
) -> Prompts | None:
    """The prompts of a checkpoint; those of a template have a place of their own, and none changes one without."""
    if not task.by_library or (template is not None and template.prompted is None):
        return None
    own = EMBEDDERS_PROMPTS if task.task is Task.FEATURE_EXTRACTION else ()
    is_pooled = pooling is None or (pooling.pools_prompt and not pooling.by_role)
    return read_prompts(checkpoint.folder, own, may_be_empty=template is not None or not is_pooled)


def _with_options(checkpoint: Checkpoint, options: ExportOptions, task: EncoderTask, has_prompts: bool) -> EncoderTask:
    """`task` without the options that this model does not have."""
    embeds = task.task is Task.FEATURE_EXTRACTION
    if options.dimensions and not embeds:
        raise UsageError(f"--dimensions is for feature-extraction, not {task.task}.", "Leave it out.")
    has_tokens = embeds and names.ATTENTION_MASK in task.postprocess_reads
    if options.dimensions and has_tokens:
        raise UsageError("--dimensions is for one vector of a text, not for those of tokens.", "Leave it out.")
    is_cut = embeds and not has_tokens and (options.dimensions or any(map(checkpoint.config.get, MATRYOSHKA)))
    if is_cut:
        task = replace(task, postprocess_settings=lambda config: {}, postprocess_reads=(DIMENSIONS,))
    omitted = (() if has_prompts else tuple(PROMPTS)) + (() if is_cut else (DIMENSIONS,))
    omitted += () if APPLY_SOFTMAX in task.postprocess_reads else (APPLY_SOFTMAX,)
    return replace(task, omitted=frozenset(omitted))


def _check_exporter(exporter: Exporter) -> None:
    if exporter == "optimum" and importlib.util.find_spec("optimum") is None:
        raise UsageError(
            "--exporter optimum needs optimum, which is not installed.",
            "Leave it out, or install hfx[optimum] in a separate environment: optimum needs transformers 4.57.",
        )


def _check_cpu_math(options: ExportOptions, precision: Precision | None) -> None:
    """Raise UsageError for bfloat16 where nothing of that kind is built, or where the gate can't compute in it."""
    if options.cpu_math == "fp32":
        return
    asked = f"--cpu-math {options.cpu_math}"
    if precision is None:
        raise UsageError(f"{asked} is for CPUs, and nothing is built for one.", "Leave it out, or use --device both.")
    if precision != "fp32":
        raise UsageError(f"{asked} is for fp32, not {precision}.", "Leave one of them out.")
    if options.cpu_runtime not in ("auto", "openvino"):
        raise UsageError(
            f"{asked} is OpenVINO's: --cpu-runtime {options.cpu_runtime} computes in float32.",
            "Leave one of them out.",
        )
    if missing := why_no_openvino():
        raise UsageError(f"{asked} needs OpenVINO, and {missing}.", "pip install openvino")
    if not multiplies_bfloat16():
        raise UsageError(
            f"{asked}: this processor has no bfloat16 instructions (avx512_bf16), so answers in it can't be compared "
            "with the checkpoint's.",
            "Export on a processor that has them, or leave it out.",
        )


def widths_up_to(max_length: int, late: LateInteraction | None = None) -> tuple[int, ...]:
    """The widths of a model that reads `max_length` tokens, which is the last one; expanded queries have their own."""
    own = {late.query.least} if late is not None and late.query.least else set()
    return (*sorted({width for width in WIDTHS if width < max_length} | own - {max_length}), max_length)


def _max_batch_size(requested: int | None, checkpoint: Checkpoint, task: EncoderTask) -> int:
    most = LARGEST_MAX_BATCH_SIZE if task.most_rows is None else task.most_rows(checkpoint.config)
    size = min(DEFAULT_MAX_BATCH_SIZE, most) if requested is None else requested
    if not 1 <= size <= most:
        raise UsageError(f"--max-batch-size {size} is out of range.", f"Choose 1 to {most}.")
    return size


def _aggregation(requested: str | None, task: EncoderTask) -> str | None:
    """How tokens are joined to entities; None for every other task."""
    if task.task is not Task.TOKEN_CLASSIFICATION:
        if requested:
            raise UsageError(f"--aggregation is for token-classification, not {task.task}.", "Leave it out.")
        return None
    if requested not in (None, *AGGREGATIONS):
        raise UsageError(f"There is no aggregation {requested!r}.", f"Choose one of {', '.join(AGGREGATIONS)}.")
    return requested or DEFAULT_AGGREGATION


def _activation(checkpoint: Checkpoint, task: EncoderTask) -> str | None:
    """What makes scores of a cross-encoder's logits; None for every other task."""
    if task.task is not Task.TEXT_RANKING:
        return None
    (scores,) = task.net_outputs(checkpoint.config)
    return read_activation(checkpoint.folder, checkpoint.config, scores.dims[0])


def _notes(
    checkpoint: Checkpoint, options: ExportOptions, task: EncoderTask, template: PairTemplate | None
) -> tuple[str, ...]:
    """Whether the task was chosen between two that the checkpoint may be for, and that a decoder has no template."""
    if task.task is Task.TEXT_RANKING and checkpoint.model_type in DECODERS and template is None:
        return (
            "No chat template has the roles query and document: the model reads the query and then the text alone.",
        )
    is_classifier = task.task is Task.TEXT_CLASSIFICATION and options.task is None
    if is_classifier and len(labels_of(checkpoint.config)) == 1:
        return ("The one label will classify texts; to rank texts for a query, pass --task text-ranking.",)
    return ()


def longest_input(checkpoint: Checkpoint, task: EncoderTask, by_tokenizer: bool = True) -> int:
    """Tokens, special ones included, that the checkpoint reads at most: the least of what its files say.

    What the tokenizer's say counts only if it is `by_tokenizer`.
    """
    config, limits = checkpoint.config, []
    if checkpoint.model_type == STATIC:
        kept, _ = truncation(checkpoint)
        longest: int = WIDTHS[-1]
        return longest if kept is None else min(kept, longest)
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions > 0:
        padding = MPNET_PADDING if checkpoint.model_type == "mpnet" else config.get("pad_token_id")
        behind = checkpoint.model_type in POSITIONS_AFTER_PADDING
        offset = (padding if isinstance(padding, int) else 1) + 1 if behind else 0
        limits.append(positions - offset)
    trained = read_max_length(checkpoint.folder) if task.by_library else None  # it replaces the tokenizer's own
    if by_tokenizer and (stated := trained or tokenizer_limit(checkpoint.home.folder)) is not None:
        limits.append(stated)
    if task.longest:
        limits.append(task.longest)
    if checkpoint.model_type in DECODERS | TEXT_ENCODERS:
        limits.append(WIDTHS[-1])  # scores of 32,768 tokens, which Qwen3 reads, take 4 GiB a head
    return min(limits, default=FALLBACK_MAX_LENGTH)
