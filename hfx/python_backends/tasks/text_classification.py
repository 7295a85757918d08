"""Labels and scores of a sequence classifier, as transformers' TextClassificationPipeline (4.57) gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import Tensors, top_k

Scores = NDArray[np.float32]


def softmax(logits: Scores) -> Scores:
    """Return probabilities along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Scores = shifted / shifted.sum(axis=-1, keepdims=True)
    return scores


def sigmoid(logits: Scores) -> Scores:
    """Return an independent probability for each logit; far below zero it is 0, without a warning."""
    with np.errstate(over="ignore"):
        scores: Scores = np.float32(1.0) / (np.float32(1.0) + np.exp(-logits))
    return scores


ACTIVATIONS: dict[str, Callable[[Scores], Scores]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


class Postprocessor:
    """logits [rows, labels] -> label STRING [rows, k], score FP32 [rows, k], best first; ties in the labels' order."""

    required: tuple[str, ...] = ("logits",)
    optional: tuple[str, ...] = ("top_k",)

    def __init__(self, labels: list[str], activation: str, default_top_k: int | None) -> None:
        self._labels = np.array([label.encode() for label in labels], dtype=np.object_)
        self._activation = ACTIVATIONS[activation]
        self._default_top_k = default_top_k

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read labels, activation (softmax, sigmoid, none), default_top_k (null: all labels) from settings.json."""
        return cls(settings["labels"], settings["activation"], settings.get("default_top_k", 1))

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the k best labels of each row. Raises InvalidInput for an invalid top_k."""
        count = top_k(tensors, self._default_top_k, len(self._labels))
        scores = self._activation(tensors["logits"][:, : len(self._labels)])  # an adapter's net may have room for more
        best = _best(scores, count)
        return {"label": self._labels[best], "score": scores[np.arange(len(scores))[:, None], best]}


def _best(scores: Scores, count: int) -> NDArray[np.intp]:
    """Return the positions of each row's `count` largest scores, largest first; equal scores keep their order."""
    if count == 1:
        best: NDArray[np.intp] = scores.argmax(axis=-1)[:, None]
        return best
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]
