"""The tasks that an encoder checkpoint can be published for, one file each. A new task is a file and a line here."""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.encoder.late_interaction import is_late_interaction
from hfx.exporter.encoder.module_list import LOGIT_SCORE, module_kinds
from hfx.exporter.encoder.sentence_transformers import is_cross_encoder, is_embedder, is_sparse_encoder
from hfx.exporter.source import Checkpoint
from hfx.exporter.tasks import (
    feature_extraction,
    fill_mask,
    question_answering,
    text_classification,
    text_ranking,
    token_classification,
    zero_shot_classification,
)
from hfx.exporter.tasks.task import EncoderTask, labels_of
from hfx.names import Task

TASKS: tuple[EncoderTask, ...] = (
    text_classification.TASK,
    token_classification.TASK,
    question_answering.TASK,
    zero_shot_classification.TASK,
    text_ranking.TASK,
    fill_mask.TASK,
    feature_extraction.TASK,
)

# Names of transformers' pipelines and of the hub for the same tasks.
ALIASES = {
    "ner": Task.TOKEN_CLASSIFICATION,
    "sentence-similarity": Task.FEATURE_EXTRACTION,
    "sentiment-analysis": Task.TEXT_CLASSIFICATION,
}

CAUSAL_MODELS = ("ForCausalLM", "LMHeadModel")
LANGUAGE_MODELS = ("HeadModel", "HeadsModel")  # GPT2LMHeadModel, XLMWithLMHeadModel: no bodies, as BertModel is one

__all__ = ["ALIASES", "CAUSAL_MODELS", "TASKS", "EncoderTask", "find_task", "infer_task"]


def find_task(task: str) -> EncoderTask:
    """The encoder task of this name; UsageError names all tasks."""
    for candidate in TASKS:
        if candidate.task == task:
            return candidate
    raise UsageError(f"There is no task {task!r}.", f"Tasks: {', '.join(Task)}.")


def infer_task(checkpoint: Checkpoint) -> EncoderTask:
    """The task that a checkpoint's modules (ColBERT, embedders) or else its `architectures` stand for.

    A sequence classifier with an "entailment" label is an NLI model, which users serve for zero-shot classification;
    others rank texts, or score pairs, where sentence-transformers' files say so, and otherwise classify texts. A masked
    language model whose logits these pool (SPLADE) gives vectors, and another one of which they score two tokens ranks.
    """
    architecture = checkpoint.architecture
    if is_late_interaction(checkpoint.folder) or is_embedder(checkpoint.folder):
        return find_task(Task.FEATURE_EXTRACTION)
    if architecture.endswith("ForSequenceClassification"):
        if any(label.lower().startswith("entail") for label in labels_of(checkpoint.config)):
            return find_task(Task.ZERO_SHOT_CLASSIFICATION)
        ranks = is_cross_encoder(checkpoint.folder, checkpoint.config)
        return find_task(Task.TEXT_RANKING if ranks else Task.TEXT_CLASSIFICATION)
    if task := _of_language_model(checkpoint):
        return find_task(task)
    if architecture.endswith("Model") and is_cross_encoder(checkpoint.folder, checkpoint.config):
        return find_task(Task.TEXT_RANKING)
    for candidate in TASKS:
        if architecture.endswith(candidate.architectures) and not architecture.endswith(LANGUAGE_MODELS):
            return candidate
    raise CheckpointUnsupported(
        f"The task of {checkpoint.id} can't be told from its architecture {architecture or '(none given)'}.",
        f"Pass --task: {', '.join(Task)}.",
    )


def _of_language_model(checkpoint: Checkpoint) -> Task | None:
    """What sentence-transformers make of a language model, where their files say so."""
    architecture, folder = checkpoint.architecture, checkpoint.folder
    if architecture.endswith("ForMaskedLM") and is_sparse_encoder(folder):  # others are fill-mask's
        return Task.FEATURE_EXTRACTION
    return Task.TEXT_RANKING if architecture.endswith(CAUSAL_MODELS) and LOGIT_SCORE in module_kinds(folder) else None
