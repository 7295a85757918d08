"""The kinds of encoders, which determine the results of a published model where its task alone does not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hfx.metadata import ModelMetadata
from hfx.names import APPLY_SOFTMAX, EMBEDDING, INPUT_TOKENS, PROMPT_NAME, Kind, Task

# The kind of a task's usual models. Generators have none.
USUAL: Mapping[Task, Kind] = MappingProxyType(
    {
        Task.TEXT_CLASSIFICATION: Kind.CLASSIFIER,
        Task.TOKEN_CLASSIFICATION: Kind.TOKENS,
        Task.QUESTION_ANSWERING: Kind.ANSWERS,
        Task.ZERO_SHOT_CLASSIFICATION: Kind.ZERO_SHOT,
        Task.TEXT_RANKING: Kind.CROSS_ENCODER,
        Task.FILL_MASK: Kind.MASKS,
        Task.FEATURE_EXTRACTION: Kind.EMBEDDER,
    }
)
VECTORS_OF_TOKENS = frozenset({Kind.LATE, Kind.TOKEN_VECTORS})
KIND = "kind"  # a parameter in a model's configuration, and a choice in its manifest
# Parameters of a classifier's configuration, in JSON: label -> score ("": of all labels), and a list of labels.
THRESHOLDS, SAFE_LABELS = "thresholds", "safe_labels"
NO_CHOICES: Mapping[str, Any] = MappingProxyType({})


def kind_of(model: ModelMetadata, task: Task, choices: Mapping[str, Any] = NO_CHOICES) -> Kind | None:
    """Return the kind of an encoder for `task`; None for a generator.

    The export records the kind in the model's configuration, and in its manifest, whose `choices` may be given. If the
    kind is in neither, because the model is from an older export or a client reads only its tensors, it is derived from
    the tensors and from the pooling in the choices.
    """
    if recorded := _recorded(model, choices):
        return recorded
    if task is Task.TEXT_RANKING:
        return _of_ranking(model, _pooling(choices))
    if task is Task.FEATURE_EXTRACTION:
        return _of_vectors(model, _pooling(choices))
    return USUAL.get(task)


def is_late(model: ModelMetadata) -> bool:
    """Return whether a model of any task, or none, ranks texts by the vectors of their tokens (ColBERT)."""
    return (_recorded(model) or _of_vectors(model, [])) is Kind.LATE


def _recorded(model: ModelMetadata, choices: Mapping[str, Any] = NO_CHOICES) -> Kind | None:
    recorded = model.kind or choices.get(KIND)
    return Kind(recorded) if recorded in tuple(Kind) else None


def _pooling(choices: Mapping[str, Any]) -> list[str]:
    pooling = choices.get("pooling")
    return [str(name) for name in pooling] if isinstance(pooling, list) else []


def _of_ranking(model: ModelMetadata, pooling: list[str]) -> Kind:
    if APPLY_SOFTMAX in model.input_types:
        return Kind.PAIR_CLASSIFIER
    return Kind.JUDGE if any(name.startswith("logits ") for name in pooling) else Kind.CROSS_ENCODER


def _of_vectors(model: ModelMetadata, pooling: list[str]) -> Kind:
    if {EMBEDDING, INPUT_TOKENS} <= {tensor.name for tensor in model.outputs}:
        return Kind.LATE if PROMPT_NAME in model.input_types else Kind.TOKEN_VECTORS
    return Kind.SPARSE if any(name.startswith("splade-") for name in pooling) else Kind.EMBEDDER
