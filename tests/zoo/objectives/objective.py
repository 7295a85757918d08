"""What a trainer needs to know of a task: features, a loss, a metric; and how features become padded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Feature = dict[str, Any]  # what the model takes (lists of ids) plus what the loss needs
Loss = Callable[[Any, list[Feature], float], Any]  # (model, features, smoothing) -> a scalar tensor
NO_LOSS = -100  # the label of a token that counts for nothing


@dataclass(frozen=True)
class WarmUp:
    """A loss that some recipes start with, over features made from the task's own: `features(model, features)`."""

    features: Callable[[Any, list[Feature]], list[Feature]]
    loss: Loss


@dataclass(frozen=True)
class Objective:
    """The parts of learning one task.

    `encode(tokenizer, examples)` gives features, `loss(model, features, smoothing)` a scalar tensor, and
    `evaluate(model, tokenizer, examples)` the held-out metric named `metric`, in 0..1. `generation` are the keywords of
    a generator's GenerationConfig, used and saved alike. `extra_files(folder, model, tokenizer)` writes what a
    checkpoint of this task has besides the model's and the tokenizer's files.
    """

    head: str
    metric: str
    texts: Callable[[Any], list[str]]
    encode: Callable[[Any, Sequence[Any]], list[Feature]]
    loss: Loss
    evaluate: Callable[[Any, Any, Sequence[Any]], float]
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    warm_up: WarmUp | None = None
    generation: Mapping[str, Any] | None = None
    extra_files: Callable[[Path, Any, Any], None] | None = None


def padded(rows: Sequence[list[Any]], fill: float) -> Any:
    """The tensor [n, longest] of the rows, filled on the right."""
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def inputs(model: Any, features: Sequence[Feature]) -> dict[str, Any]:
    """The tensors of a batch [n, longest], padded on the right."""
    fill = {"input_ids": model.config.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
    return {name: padded([f[name] for f in features], fill[name]) for name in fill if name in features[0]}


def token_loss(logits: Any, labels: Any, smoothing: float) -> Any:
    """Cross-entropy of `labels` [n, longest], those left out that are NO_LOSS."""
    import torch

    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LOSS, label_smoothing=smoothing
    )


def tokens(tokenizer: Any, *texts: list[str]) -> list[Feature]:
    """The model inputs of each text, or of each pair of texts, truncated to the tokenizer's model_max_length."""
    encoded = tokenizer(*texts, truncation=True)
    return [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]


def batches(features: list[Feature], size: int = 64) -> Iterator[list[Feature]]:
    """The features in order, `size` at a time."""
    for start in range(0, len(features), size):
        yield features[start : start + size]


def micro_f1(predicted: Sequence[Set[Any]], expected: Sequence[Set[Any]]) -> float:
    """F1 over the members of all sets together: 2 * hits / (predicted + expected)."""
    hits = sum(len(p & e) for p, e in zip(predicted, expected, strict=True))
    return 2 * hits / (sum(map(len, predicted)) + sum(map(len, expected)))
