"""The best answer in a context, as transformers' QuestionAnsweringPipeline (4.57) finds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .inputs import Tensors, head, strings

Scores = NDArray[np.float32]

# In spans, a token's own characters are followed by those of its word. -1: a token that may not be an answer's border,
# or is of no word; -2: no token.
PADDING = -2

MASKED = np.float32(-10000.0)

# The pipeline looks at 2 * top_k + 10 candidates a window, with top_k 1: pieces of one word may give equal answers,
# whose scores are summed.
CANDIDATES = 12


@dataclass
class Answer:
    """A part of the context; equal texts (but for case) share one, with the place that was found first."""

    text: str
    start: int
    end: int
    score: float


class Postprocessor:
    """start_logits, end_logits [rows, windows, width], spans [rows, windows, width, 4], context STRING [rows, 1]
    -> answer STRING, score FP32, start, end INT32 (characters in the context), each [rows, 1].
    """

    required: tuple[str, ...] = ("start_logits", "end_logits", "spans", "context")
    optional: tuple[str, ...] = ()

    def __init__(self, max_answer_length: int) -> None:
        self._max_answer_length = max_answer_length

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """From settings.json: max_answer_length (tokens)."""
        return cls(settings.get("max_answer_length", 15))

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The best answer of each row; "" with score 0 where nothing in the context can be one."""
        rows = zip(
            tensors["start_logits"], tensors["end_logits"], tensors["spans"], tensors["context"][:, 0], strict=True
        )
        best = [self._best(*row) for row in rows]
        return {
            "answer": strings([[each.text] for each in best]),
            "score": np.array([[each.score] for each in best], np.float32),
            "start": np.array([[each.start] for each in best], np.int32),
            "end": np.array([[each.end] for each in best], np.int32),
        }

    def _best(self, starts: Scores, ends: Scores, spans: NDArray[np.int32], context: bytes) -> Answer:
        text = head(context, max(0, int(spans.max())))
        answers: dict[str, Answer] = {}
        for start, end, score in self._candidates(starts, ends, spans):
            found = text[start:end]
            known = answers.get(found.lower())
            if known is None:
                answers[found.lower()] = Answer(found, start, end, score)
            else:
                known.score += score
        return max(answers.values(), key=lambda each: each.score, default=Answer("", 0, 0, 0.0))

    def _candidates(self, starts: Scores, ends: Scores, spans: NDArray[np.int32]) -> Iterator[tuple[int, int, float]]:
        """(start, end, score) of each window's best spans of tokens, as characters."""
        # NVIDIA's backend pads a batch to its most windows
        for start, end, places in zip(starts[: len(spans)], ends[: len(spans)], spans, strict=True):
            # The window's own length, not the padded one: sums of floats depend on their number.
            length = int(np.count_nonzero(places[:, 0] != PADDING))
            allowed = places[:length, 0] >= 0
            if not allowed.any():  # nor of a context without tokens, where there is no classification token
                continue
            scores = _span_scores(
                _probabilities(start[:length], allowed), _probabilities(end[:length], allowed), self._max_answer_length
            )
            for at in _largest(scores, CANDIDATES):
                first, extra = divmod(int(at), scores.shape[1])
                yield *_characters(places[first], places[first + extra]), float(scores.flat[at])


def _characters(first: NDArray[np.int32], last: NDArray[np.int32]) -> tuple[int, int]:
    """Start and end of an answer: of the words of its tokens, or of the tokens where one is of no word."""
    column = 2 if first[2] >= 0 and last[2] >= 0 else 0
    return int(first[column]), int(last[column + 1])


def _probabilities(logits: Scores, allowed: NDArray[np.bool_]) -> Scores:
    """Softmax over the tokens allowed; the first, which stands for "no answer", takes part and is then ruled out."""
    masked = np.where(allowed, logits, MASKED)
    powers = np.exp(masked - masked.max())
    shares: Scores = powers / powers.sum()
    shares[0] = 0.0
    return shares


def _span_scores(starts: Scores, ends: Scores, longest: int) -> Scores:
    """[tokens, longest]: the score of the answer from token i to token i + j."""
    padded = np.concatenate([ends, np.zeros(longest - 1, np.float32)])
    scores: Scores = starts[:, None] * sliding_window_view(padded, longest)
    return scores


def _largest(scores: Scores, count: int) -> NDArray[np.intp]:
    """Flat indices of the `count` largest scores above zero, largest first, equal ones in their order."""
    flat = scores.ravel()
    if flat.size > count:
        kept = np.sort(np.argpartition(flat, flat.size - count)[-count:])
        kept = kept[flat[kept] > 0]
    else:
        kept = np.flatnonzero(flat > 0)
    return kept[np.argsort(-flat[kept], kind="stable")]
