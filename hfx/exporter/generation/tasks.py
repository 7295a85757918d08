"""The tasks of generators, the choice of a checkpoint's task, and the metrics of generated texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.config_file import TOKENIZER_CONFIG, read_optional_json
from hfx.exporter.encoder.checkpoint.module_list import LOGIT_SCORE, module_kinds
from hfx.exporter.encoder.checkpoint.sentence_transformers import is_embedder
from hfx.exporter.encoder.kinds.answers import share_equal
from hfx.exporter.encoder.kinds.kind import Answer
from hfx.exporter.generation.fields import read_fields
from hfx.exporter.graph.blocks import Kind
from hfx.exporter.source import Checkpoint
from hfx.names import GENERATION_TASKS, Task
from hfx.repository.config_pbtxt import TensorSpec

Metric = Literal["rouge", "exact_match"]

# The classes of transformers that generate text, by the ends of their names.
DECODERS = ("LMHeadModel", "ForCausalLM")
ENCODER_DECODERS = ("ForConditionalGeneration", "MarianMTModel", "T5WithLMHeadModel")
SUMMARIZERS = ("pegasus",)  # model types that were only trained to summarize
TRANSLATORS = ("marian", "m2m_100")
WORDS = re.compile(r"\w+")
# The settings for labelled texts: the model's own, but without sampling; texts that are too long are cut.
DATA_SETTINGS = {names.DO_SAMPLE: False, names.LONG: "truncate"}


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, in every script; Google's rouge-score only knows ASCII."""
    return WORDS.findall(text.lower())


def rouge_l(answer: str, target: str) -> float:
    """Return ROUGE-L of one answer, the F-measure of the longest common subsequence of words (Lin 2004).

    It is 0 if the answer or the target has no word.
    """
    answered, expected = words(answer), words(target)
    common = _common(answered, expected)
    return 2 * common / (len(answered) + len(expected)) if common else 0.0


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for column, other in enumerate(second, 1):
            above = row[column]
            row[column] = corner + 1 if word == other else max(above, row[column - 1])
            corner = above
    return row[-1]


def rouge(answers: Sequence[Answer], targets: Sequence[str]) -> float:
    """Return the mean ROUGE-L of answers and targets."""
    return fmean(rouge_l(a[names.TEXT_OUTPUT], t) for a, t in zip(answers, targets, strict=True))


def exact_match(answers: Sequence[Answer], targets: Sequence[str]) -> float:
    """Return the share of answers that equal their target, apart from blanks at the ends."""
    return share_equal((answer[names.TEXT_OUTPUT] for answer in answers), targets)


METRICS: Mapping[str, Callable[[Sequence[Answer], Sequence[str]], float]] = {
    "rouge": rouge,
    "exact_match": exact_match,
}


@dataclass(frozen=True)
class GenerationTask:
    """One task: the kind of model that it needs, its transformers class, and its metric on labelled data."""

    task: Task
    net_kind: Kind
    auto_class: str
    metric_name: Metric
    inputs: tuple[TensorSpec, ...] = (TensorSpec(names.TEXT_INPUT, "TYPE_STRING", (1,)),)

    @property
    def metrics(self) -> Mapping[str, Callable[[Sequence[Answer], Sequence[str]], float]]:
        """The metrics of labelled data by name; each compares answers with targets."""
        return METRICS


TASKS = (
    GenerationTask(Task.TEXT_GENERATION, "decoder", "AutoModelForCausalLM", "rouge"),
    GenerationTask(Task.SUMMARIZATION, "encoder-decoder", "AutoModelForSeq2SeqLM", "rouge"),
    GenerationTask(Task.TEXT2TEXT_GENERATION, "encoder-decoder", "AutoModelForSeq2SeqLM", "exact_match"),
    GenerationTask(Task.TRANSLATION, "encoder-decoder", "AutoModelForSeq2SeqLM", "rouge"),
)


def is_generator(checkpoint: Checkpoint, task: str | None) -> bool:
    """Return whether `task`, or without it the checkpoint's architecture, needs a generator.

    Some published decoders still name a generator's architecture, although sentence-transformers pools their hidden
    states (Qwen3-Embedding) or makes a score of their logits (Qwen3-Reranker). They are no generators.
    """
    if task is not None:
        return task in GENERATION_TASKS
    folder = checkpoint.folder
    generates = checkpoint.architecture.endswith((*DECODERS, *ENCODER_DECODERS))
    return generates and not (is_embedder(folder) or LOGIT_SCORE in module_kinds(folder))


def find_generation_task(name: str) -> GenerationTask:
    """Return the task of this name. Raises KeyError for a task that does not generate text."""
    return {task.task: task for task in TASKS}[Task(name)]


def choose_task(checkpoint: Checkpoint, kind: Kind, requested: str | None) -> GenerationTask:
    """Return the requested task, or the one that a checkpoint of `kind` is for. Raises UsageError if they don't fit."""
    task = find_generation_task(requested or _inferred(checkpoint, kind))
    if task.net_kind != kind:
        fitting = ", ".join(each.task for each in TASKS if each.net_kind == kind)
        raise UsageError(
            f"--task {task.task} is for a model of the kind {task.net_kind}; {checkpoint.id} "
            f"({checkpoint.model_type}) is of the kind {kind}.",
            f"Choose {fitting}, or leave --task out.",
        )
    return task


def _inferred(checkpoint: Checkpoint, kind: Kind) -> Task:
    if kind == "decoder":
        return Task.TEXT_GENERATION
    if checkpoint.model_type in TRANSLATORS:
        return Task.TRANSLATION
    if _summarizes(checkpoint):
        return Task.SUMMARIZATION
    # mBART's tokenizers, the default of its model type, have a token for each language.
    tokenizer = read_optional_json(checkpoint.folder / TOKENIZER_CONFIG).get("tokenizer_class", "MBart")
    has_languages = checkpoint.model_type == "mbart" and str(tokenizer).startswith("MBart")
    return Task.TRANSLATION if has_languages else Task.TEXT2TEXT_GENERATION


def _summarizes(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint's tasks, its model type or its default settings are those of a summarizer.

    BART's summarizers search with beams, a least length and no repeated n-grams. Translators and models that answer
    questions can't have a least length, as their answer may be one word.
    """
    tasks = checkpoint.config.get("task_specific_params")
    if isinstance(tasks, dict) and tasks:
        return list(tasks) == [Task.SUMMARIZATION]
    if checkpoint.model_type in SUMMARIZERS:
        return True
    fields, _ = read_fields(checkpoint)
    least = fields.get("min_length") or fields.get("min_new_tokens")
    return bool(least and fields.get("no_repeat_ngram_size") and fields.get("num_beams"))
