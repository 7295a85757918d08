"""The kinds of encoders that a checkpoint can be published as, one file each. A new kind is a file and a line here."""

from __future__ import annotations

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.encoder.kinds.answers import Answers
from hfx.exporter.encoder.kinds.classifier import Classifier
from hfx.exporter.encoder.kinds.cross_encoder import CAUSAL_MODELS, CrossEncoder, PairClassifier
from hfx.exporter.encoder.kinds.embedder import Embedder
from hfx.exporter.encoder.kinds.judge import Judge
from hfx.exporter.encoder.kinds.kind import EncoderKind, labels_of
from hfx.exporter.encoder.kinds.late import Late
from hfx.exporter.encoder.kinds.masks import Masks
from hfx.exporter.encoder.kinds.sparse import RoutedSparse, Sparse
from hfx.exporter.encoder.kinds.static import Static
from hfx.exporter.encoder.kinds.token_vectors import TokenVectors
from hfx.exporter.encoder.kinds.tokens import Tokens
from hfx.exporter.encoder.kinds.zero_shot import ZeroShot
from hfx.exporter.encoder.late_interaction import is_late_interaction
from hfx.exporter.encoder.module_list import LOGIT_SCORE, module_kinds
from hfx.exporter.encoder.sentence_transformers import is_cross_encoder, is_embedder, is_sparse_encoder
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.tasks.kinds import USUAL

# In the order in which those of one task claim a checkpoint; the last one of a task claims all.
KINDS: tuple[type[EncoderKind], ...] = (
    Classifier,
    Tokens,
    Answers,
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
BY_KIND: dict[Kind, type[EncoderKind]] = {each.kind: each for each in KINDS}

# Names of transformers' pipelines and of the hub for the same tasks.
ALIASES = {
    "ner": Task.TOKEN_CLASSIFICATION,
    "sentence-similarity": Task.FEATURE_EXTRACTION,
    "sentiment-analysis": Task.TEXT_CLASSIFICATION,
}

LANGUAGE_MODELS = ("HeadModel", "HeadsModel")  # GPT2LMHeadModel, XLMWithLMHeadModel: no bodies, as BertModel is one

__all__ = ["ALIASES", "BY_KIND", "CAUSAL_MODELS", "KINDS", "EncoderKind", "find_kind", "task_of", "usual_kind"]


def find_kind(checkpoint: Checkpoint, options: ExportOptions) -> type[EncoderKind]:
    """The first kind for the task of `options`, or of the checkpoint, that claims it. Raises UsageError."""
    task = _named(options.task) if options.task else task_of(checkpoint)
    return next(kind for kind in KINDS if kind.task is task and kind.claims(checkpoint, options))


def usual_kind(task: str) -> EncoderKind:
    """What the usual models of a task have, of no checkpoint. Raises UsageError for another task."""
    return BY_KIND[USUAL[_named(task)]]()  # type: ignore[call-arg]


def _named(task: str) -> Task:
    if task not in tuple(USUAL):
        raise UsageError(f"There is no task {task!r}.", f"Tasks: {', '.join(Task)}.")
    return Task(task)


def task_of(checkpoint: Checkpoint) -> Task:
    """The task that a checkpoint's modules (ColBERT, embedders) or else its `architectures` stand for.

    A sequence classifier with an "entailment" label is an NLI model, which users serve for zero-shot classification;
    others rank texts, or score pairs, where sentence-transformers' files say so, and otherwise classify texts. A masked
    language model whose logits these pool (SPLADE) gives vectors, and another one of which they score two tokens ranks.
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
        f"Pass --task: {', '.join(Task)}.",
    )


def _of_language_model(checkpoint: Checkpoint) -> Task | None:
    """What sentence-transformers make of a language model, where their files say so."""
    architecture, folder = checkpoint.architecture, checkpoint.folder
    if architecture.endswith("ForMaskedLM") and is_sparse_encoder(folder):  # others are fill-mask's
        return Task.FEATURE_EXTRACTION
    return Task.TEXT_RANKING if architecture.endswith(CAUSAL_MODELS) and LOGIT_SCORE in module_kinds(folder) else None
