"""Labels and scores of a sequence classifier, as transformers' TextClassificationPipeline (4.57) gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..exponential import exp
from .inputs import Tensors, top_k

Scores = NDArray[np.float32]


def softmax(logits: Scores) -> Scores:
    """Return probabilities along the last axis."""
    shifted = exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Scores = shifted / shifted.sum(axis=-1, keepdims=True)
    return scores


def sigmoid(logits: Scores) -> Scores:
    """Return an independent probability for each logit; far below zero it is 0, without a warning."""
    with np.errstate(over="ignore"):
        scores: Scores = np.float32(1.0) / (np.float32(1.0) + exp(-logits))
    return scores


ACTIVATIONS: dict[str, Callable[[Scores], Scores]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


LARGEST = b"max"  # value of `long`


class Postprocessor:
    """logits -> label STRING [rows, k], score FP32 [rows, k], best first; ties in the labels' order.

    The logits are [rows, windows, labels], and window_tokens [rows, windows] has the number of tokens of each window (0
    where a row has none). The score of a label is the mean of its scores in all windows, weighted by their tokens, or
    the largest one if `long` STRING [rows, 1] is max. Without `has_windows` (earlier exports), logits are [rows,
    labels].
    """

    optional: tuple[str, ...] = ("top_k", "long")

    def __init__(
        self, labels: list[str], activation: str, default_top_k: int | None, has_windows: bool = False
    ) -> None:
        self.required: tuple[str, ...] = ("logits", "window_tokens") if has_windows else ("logits",)
        self._labels = np.array([label.encode() for label in labels], dtype=np.object_)
        self._activation = ACTIVATIONS[activation]
        self._default_top_k = default_top_k

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read labels, activation (softmax, sigmoid, none), default_top_k (null: all labels) from settings.json."""
        top_k, has_windows = settings.get("default_top_k", 1), settings.get("windows", False)
        return cls(settings["labels"], settings["activation"], top_k, has_windows)

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the k best labels of each row. Raises InvalidInput for an invalid top_k."""
        count = top_k(tensors, self._default_top_k, len(self._labels))
        logits = tensors["logits"][..., : len(self._labels)]  # an adapter's net may have room for more
        scores = self._activation(logits.reshape(-1, len(self._labels)))
        if logits.ndim == 3:
            ways = tensors.get("long", np.full((len(logits), 1), b"", np.object_))[:, 0]
            rows = zip(scores.reshape(logits.shape), tensors["window_tokens"], ways, strict=True)
            scores = np.stack([_of_text(*row) for row in rows])
        best = _best(scores, count)
        return {"label": self._labels[best], "score": scores[np.arange(len(scores))[:, None], best]}


def _of_text(scores: Scores, tokens: NDArray[np.int32], long: bytes) -> Scores:
    """Return a text's score for each label, from those in its windows."""
    count = max(1, np.count_nonzero(tokens))
    joined: Scores = scores[0]
    if count > 1 and long == LARGEST:
        joined = scores[:count].max(axis=0) + np.float32(0)  # no -0, which may or may not be the largest
    elif count > 1:
        # cumsum adds window by window, as the backend in C++ does; sum would add in another order.
        total = np.cumsum(scores[:count] * tokens[:count, None].astype(np.float64), axis=0)[-1]
        joined = (total / tokens.sum()).astype(np.float32)
    return joined


def _best(scores: Scores, count: int) -> NDArray[np.intp]:
    """Return the positions of each row's `count` largest scores, largest first; equal scores keep their order."""
    if count == 1:
        best: NDArray[np.intp] = scores.argmax(axis=-1)[:, None]
        return best
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]
