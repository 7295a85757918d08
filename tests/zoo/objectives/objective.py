"""What a trainer needs to know of a task: features, a loss, a metric; and how features become padded batches.

Owns the `Objective` value and batching; knows no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Feature = dict[str, Any]  # what the model takes (lists of ids) plus what the loss needs
Loss = Callable[[Any, list[Feature], float], Any]  # (model, features, smoothing) -> a scalar tensor


@dataclass(frozen=True)
class WarmUp:
    """A loss that some recipes start with, over features made from the task's own: `features(model, features)`."""

    features: Callable[[Any, list[Feature]], list[Feature]]
    loss: Loss


@dataclass(frozen=True)
class Objective:
    """The parts of learning one task.

    `encode(tokenizer, examples)` gives features, `loss(model, features, smoothing)` a scalar tensor, and
    `evaluate(model, tokenizer, examples)` the held-out metric named `metric`, in 0..1. `extra_files(folder, model,
    tokenizer)` writes what a checkpoint of this task has besides the model's and the tokenizer's files.
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
    extra_files: Callable[[Path, Any, Any], None] | None = None


def inputs(model: Any, features: Sequence[Feature]) -> dict[str, Any]:
    """The tensors of a batch [n, longest], padded on the right."""
    import torch

    longest = max(len(f["input_ids"]) for f in features)
    fill = {"input_ids": model.config.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
    return {
        name: torch.tensor([f[name] + [fill[name]] * (longest - len(f[name])) for f in features])
        for name in fill
        if name in features[0]
    }


def tokens(tokenizer: Any, *texts: list[str]) -> list[Feature]:
    """The model inputs of each text, or of each pair of texts, truncated to the tokenizer's model_max_length."""
    encoded = tokenizer(*texts, truncation=True)
    return [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]


def batches(features: list[Feature], size: int = 64) -> Iterator[list[Feature]]:
    """The features in order, `size` at a time."""
    for start in range(0, len(features), size):
        yield features[start : start + size]


def micro_f1(found: Sequence[Set[Any]], wanted: Sequence[Set[Any]]) -> float:
    """F1 over the members of all sets together: 2 * hits / (found + wanted)."""
    hits = sum(len(f & w) for f, w in zip(found, wanted, strict=True))
    return 2 * hits / (sum(map(len, found)) + sum(map(len, wanted)))
