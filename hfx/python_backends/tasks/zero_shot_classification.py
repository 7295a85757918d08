"""Candidate labels ranked by entailment, as transformers' ZeroShotClassificationPipeline (4.57) ranks them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..exponential import exp
from .inputs import Tensors, top_k
from .text_classification import sigmoid

Scores = NDArray[np.float32]


class Postprocessor:
    """logits [rows, labels, classes], candidate_labels [rows, labels] -> label STRING, score FP32 [rows, k].

    The best label comes first. A single label is scored alone, by entailment against contradiction, and so is each
    label if multi_label is true. Otherwise, the scores are shares of the entailment of all labels. Without
    `entailment`, a model has one logit of each label, [rows, 1, 1, labels], as gliclass (0.1).
    """

    required: tuple[str, ...] = ("logits", "candidate_labels")
    optional: tuple[str, ...] = ("top_k", "multi_label")

    def __init__(self, entailment: int | None, contradiction: int | None, default_top_k: int | None) -> None:
        self._entailment = entailment
        self._against = [each for each in (contradiction, entailment) if each is not None]
        self._default_top_k = default_top_k

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read entailment, contradiction (classes), default_top_k (null, the default: all) from settings.json."""
        return cls(settings["entailment"], settings["contradiction"], settings.get("default_top_k"))

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the k best labels of each row.

        Raises InvalidInput for an invalid top_k, or labels that do not fit the logits.
        """
        logits, labels = tensors["logits"], tensors["candidate_labels"]
        if self._entailment is None:
            logits = logits[:, 0].swapaxes(1, 2)
        if labels.ndim != 2 or labels.shape[0] != len(logits) or labels.shape[1] > logits.shape[1]:
            raise InvalidInput(f"candidate_labels has the shape {list(labels.shape)}, not {list(logits.shape[:2])}")
        logits = logits[:, : labels.shape[1]]  # NVIDIA's backend pads a batch to the largest number of labels in it
        count = top_k(tensors, self._default_top_k, labels.shape[1])
        alone = self._alone(tensors, labels.shape)
        scores = [self._scores(row, by_itself) for row, by_itself in zip(logits, alone, strict=True)]
        best = [row.argsort(kind="stable")[::-1][:count] for row in scores]
        return {
            "label": np.stack([row[order] for row, order in zip(labels, best, strict=True)]),
            "score": np.stack([row[order] for row, order in zip(scores, best, strict=True)]),
        }

    def _alone(self, tensors: Tensors, shape: tuple[int, ...]) -> list[bool]:
        is_only = shape[1] == 1 and self._entailment is not None
        if is_only or "multi_label" not in tensors:
            return [is_only] * shape[0]
        values = tensors["multi_label"]
        if values.size != shape[0]:
            raise InvalidInput(f"multi_label must hold one value a row, not the shape {list(values.shape)}")
        return [bool(value) for value in values.flat]

    def _scores(self, logits: Scores, alone: bool) -> Scores:
        if self._entailment is None:
            return sigmoid(logits[:, 0]) if alone else _shares(logits[:, 0])
        if alone:
            shares = _shares(logits[:, self._against])
            return shares[:, 1]
        return _shares(logits[:, self._entailment])


def _shares(logits: Scores) -> Scores:
    """Return exp(logits) as shares of their sum along the last axis.

    The logits are shifted only if exp would overflow, because shifting rounds.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        powers = exp(logits)
        shares: Scores = powers / powers.sum(axis=-1, keepdims=True)
    if np.isfinite(shares).all():
        return shares
    powers = exp(logits - logits.max(axis=-1, keepdims=True))
    shifted: Scores = powers / powers.sum(axis=-1, keepdims=True)
    return shifted
