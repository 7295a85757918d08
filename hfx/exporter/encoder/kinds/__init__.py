"""The kinds of encoders that a checkpoint can be published as.

Each kind has a file of its own. To add a kind, write a file and add a line to KINDS.
"""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.encoder.checkpoint.late_interaction import is_late_interaction
from hfx.exporter.encoder.checkpoint.module_list import LOGIT_SCORE, module_kinds
from hfx.exporter.encoder.checkpoint.sentence_transformers import is_cross_encoder, is_embedder, is_sparse_encoder
from hfx.exporter.encoder.kinds.answer_classifier import AnswerClassifier
from hfx.exporter.encoder.kinds.answers import Answers
from hfx.exporter.encoder.kinds.classifier import Classifier
from hfx.exporter.encoder.kinds.cross_encoder import CAUSAL_MODELS, CrossEncoder, PairClassifier
from hfx.exporter.encoder.kinds.embedder import Embedder
from hfx.exporter.encoder.kinds.judge import Judge
from hfx.exporter.encoder.kinds.kind import EncoderKind, labels_of
from hfx.exporter.encoder.kinds.labels import Labels
from hfx.exporter.encoder.kinds.late import Late
from hfx.exporter.encoder.kinds.masks import Masks
from hfx.exporter.encoder.kinds.spans import Spans
from hfx.exporter.encoder.kinds.sparse import RoutedSparse, Sparse
from hfx.exporter.encoder.kinds.static import Static
from hfx.exporter.encoder.kinds.token_vectors import TokenVectors
from hfx.exporter.encoder.kinds.tokens import Tokens
from hfx.exporter.encoder.kinds.zero_shot import ZeroShot
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.tasks.kinds import USUAL

# The kinds of one task claim a checkpoint in this order; the last kind of each task claims any checkpoint.
KINDS: tuple[type[EncoderKind], ...] = (
    AnswerClassifier,
    Classifier,
    Spans,
    Tokens,
    Answers,
    Labels,
    ZeroShot,
    Judge,
    PairClassifier,
    CrossEncoder,
    Masks,
    Static,
    RoutedSparse,
    Sparse,
    Late,
    TokenVectors,
    Embedder,
)
BY_KIND: dict[Kind, type[EncoderKind]] = {each.name: each for each in KINDS}

# Names of transformers' pipelines and of the hub for the same tasks.
ALIASES = {
    "ner": Task.TOKEN_CLASSIFICATION,
    "sentence-similarity": Task.FEATURE_EXTRACTION,
    "sentiment-analysis": Task.TEXT_CLASSIFICATION,
}

# GPT2LMHeadModel and XLMWithLMHeadModel have a head; they are not bare bodies such as BertModel.
LANGUAGE_MODELS = ("HeadModel", "HeadsModel")

__all__ = ["ALIASES", "BY_KIND", "CAUSAL_MODELS", "KINDS", "EncoderKind", "find_kind", "task_of", "usual_kind"]


def find_kind(checkpoint: Checkpoint, options: ExportOptions) -> type[EncoderKind]:
    """Return the first kind that claims `checkpoint`, for the task of `options` or else the checkpoint's own task.

    Raises UsageError for an unknown task, and CheckpointUnsupported if the checkpoint's task can't be told.
    """
    task = _named(options.task) if options.task else task_of(checkpoint)
    return next(kind for kind in KINDS if kind.task is task and kind.claims(checkpoint, options))


def usual_kind(task: str) -> EncoderKind:
    """Return the usual kind of a task, as an instance without a checkpoint. Raises UsageError for an unknown task."""
    return BY_KIND[USUAL[_named(task)]]()  # type: ignore[call-arg]


def _named(task: str) -> Task:
    if task not in tuple(USUAL):
        raise UsageError(f"There is no task {task!r}.", f"Tasks: {_task_names()}.")
    return Task(task)


def _task_names() -> str:
    """Return the names of all tasks, each followed by its other names."""
    others = {task: [alias for alias, name in ALIASES.items() if name is task] for task in Task}
    return ", ".join(f"{task} (or {', '.join(names)})" if names else task for task, names in others.items())


def task_of(checkpoint: Checkpoint) -> Task:
    """Return the task that a checkpoint's modules (ColBERT, embedders), or else its `architectures`, stand for.

    A sequence classifier with an "entailment" label is an NLI model, which users serve for zero-shot classification.
    Other sequence classifiers rank texts, or score pairs, if sentence-transformers' files say so; else they classify
    texts. If these files pool the logits of a masked language model (SPLADE), it gives vectors. If they score a causal
    language model by the logits of its answer, it ranks texts.
    Raises CheckpointUnsupported if the task can't be told.
    """
    architecture = checkpoint.architecture
    if is_late_interaction(checkpoint.folder) or is_embedder(checkpoint.folder):
        return Task.FEATURE_EXTRACTION
    if architecture.endswith("ForSequenceClassification"):
        if any(label.lower().startswith("entail") for label in labels_of(checkpoint.config)):
            return Task.ZERO_SHOT_CLASSIFICATION
        ranks = is_cross_encoder(checkpoint.folder, checkpoint.config)
        return Task.TEXT_RANKING if ranks else Task.TEXT_CLASSIFICATION
    if task := _of_language_model(checkpoint):
        return task
    if architecture.endswith("Model") and is_cross_encoder(checkpoint.folder, checkpoint.config):
        return Task.TEXT_RANKING
    for kind in KINDS:
        if architecture.endswith(kind.architectures) and not architecture.endswith(LANGUAGE_MODELS):
            return kind.task
    raise CheckpointUnsupported(
        f"The task of {checkpoint.id} can't be told from its architecture {architecture or '(none given)'}.",
        f"Pass --task: {_task_names()}.",
    )


def _of_language_model(checkpoint: Checkpoint) -> Task | None:
    """Return the task that sentence-transformers' files give a language model; None if they give none."""
    architecture, folder = checkpoint.architecture, checkpoint.folder
    if architecture.endswith("ForMaskedLM") and is_sparse_encoder(folder):  # other masked models are for fill-mask
        return Task.FEATURE_EXTRACTION
    return Task.TEXT_RANKING if architecture.endswith(CAUSAL_MODELS) and LOGIT_SCORE in module_kinds(folder) else None
