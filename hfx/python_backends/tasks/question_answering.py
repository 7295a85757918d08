"""The best answers in a context, as transformers' QuestionAnsweringPipeline (4.57) finds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..exponential import exp
from .inputs import TOP_K, Tensors, head, strings

Scores = NDArray[np.float32]

# In spans, a token's own characters are followed by the characters of its word. -1 means that the token may not be an
# answer's border, or belongs to no word; -2 means that there is no token.
PADDING = -2

MASKED = np.float32(-10000.0)

# The pipeline considers 2 * top_k + 10 candidates for each window: pieces of one word may give equal answers, whose
# scores are summed.
MORE_CANDIDATES = 10
MOST_TOP_K = 100


@dataclass
class Answer:
    """A part of the context; texts that differ only in case share an answer, with the place that was found first."""

    answer: str
    start: int
    end: int
    score: float


class Postprocessor:
    """start_logits, end_logits, spans, context -> answer, score, start, end, answers.

    The inputs are start_logits and end_logits [rows, windows, width], spans [rows, windows, width, 4], and context
    STRING [rows, 1]. The outputs are [rows, 1]: answer STRING, score FP32, and start and end INT32 (characters in the
    context) have the best answer of a row, and answers STRING has the best `top_k` as a JSON list.

    The settings are [rows, 1]. `max_answer_len` is in tokens. With `handle_impossible_answer`, the empty answer is one
    more answer; its score is the least that any window has for the first token as start and end.
    """

    required: tuple[str, ...] = ("start_logits", "end_logits", "spans", "context")
    optional: tuple[str, ...] = (TOP_K, "max_answer_len", "handle_impossible_answer")

    def __init__(self, max_answer_length: int) -> None:
        self._max_answer_length = max_answer_length

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read max_answer_length (tokens) from settings.json."""
        return cls(settings.get("max_answer_length", 15))

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the best answers of each row; "" with score 0 if nothing in the context can be an answer.

        Raises InvalidInput for settings out of range.
        """
        rows = len(tensors["context"])
        counts = _numbers(TOP_K, tensors, 1, rows)
        if max(counts) > MOST_TOP_K:
            raise InvalidInput(f"{TOP_K} must be at most {MOST_TOP_K}, not {max(counts)}")
        lengths = _numbers("max_answer_len", tensors, self._max_answer_length, rows)
        impossible = tensors.get("handle_impossible_answer", np.zeros(rows, np.bool_)).ravel()
        found = [
            _answers(*row)
            for row in zip(
                tensors["start_logits"], tensors["end_logits"], tensors["spans"], tensors["context"][:, 0],
                counts, lengths, impossible, strict=True,
            )
        ]  # fmt: skip
        best = [answers[0] for answers in found]
        return {
            "answers": strings([[json.dumps([asdict(each) for each in row], ensure_ascii=False)] for row in found]),
            "answer": strings([[each.answer] for each in best]),
            "score": np.array([[each.score] for each in best], np.float32),
            "start": np.array([[each.start] for each in best], np.int32),
            "end": np.array([[each.end] for each in best], np.int32),
        }


def _numbers(name: str, tensors: Tensors, default: int, rows: int) -> list[int]:
    """Return the number `name` [rows, 1] of each row, at least 1; `default` if it is left out. Raises InvalidInput."""
    values: list[int] = tensors[name].ravel().tolist() if name in tensors else [default] * rows
    if len(values) != rows:
        raise InvalidInput(f"{name} must hold one value a row, not {len(values)} for {rows}")
    if min(values) < 1:
        raise InvalidInput(f"{name} must be at least 1, not {min(values)}")
    return values


def _answers(
    starts: Scores, ends: Scores, spans: NDArray[np.int32], context: bytes, count: int, longest: int, impossible: bool
) -> list[Answer]:
    """Return the best `count` answers of at most `longest` tokens, best first."""
    text = head(context, max(0, int(spans.max())))
    answers: dict[str, Answer] = {}
    least = np.inf
    # NVIDIA's backend pads a batch to the largest number of windows in it.
    for start, end, places in zip(starts[: len(spans)], ends[: len(spans)], spans, strict=True):
        # The window's own length, not the padded one: sums of floats depend on their number.
        length = int(np.count_nonzero(places[:, 0] != PADDING))
        allowed = places[:length, 0] >= 0
        if not allowed.any():  # padding, or a context without tokens if there is no classification token
            continue
        shares = _probabilities(start[:length], allowed), _probabilities(end[:length], allowed)
        least = min(least, float(shares[0][0] * shares[1][0]))
        for first, last, score in _candidates(*shares, places, min(longest, length), 2 * count + MORE_CANDIDATES):
            found = text[first:last]
            known = answers.setdefault(found.lower(), Answer(found, first, last, 0.0))
            known.score += score
    ranked = list(answers.values())
    if impossible and least < np.inf:
        ranked.append(Answer("", 0, 0, least))
    return sorted(ranked, key=lambda each: each.score, reverse=True)[:count] or [Answer("", 0, 0, 0.0)]


def _candidates(
    starts: Scores, ends: Scores, places: NDArray[np.int32], longest: int, count: int
) -> Iterator[tuple[int, int, float]]:
    """Yield (start, end, score) of a window's best spans, in characters; none starts or ends at the first token."""
    starts[0] = ends[0] = 0.0
    # The score [tokens, longest] of the answer from token i to token i + j.
    padded = np.concatenate([ends, np.zeros(longest - 1, np.float32)])
    scores = starts[:, None] * sliding_window_view(padded, longest)
    for at in _largest(scores, count):
        first, extra = divmod(int(at), scores.shape[1])
        begin, end = places[first], places[first + extra]
        column = 2 if begin[2] >= 0 and end[2] >= 0 else 0  # of words, or of tokens if one of them belongs to no word
        yield int(begin[column]), int(end[column + 1]), float(scores.flat[at])


def _probabilities(logits: Scores, allowed: NDArray[np.bool_]) -> Scores:
    """Return the softmax over the allowed tokens; the first token, which stands for "no answer", takes part."""
    masked = np.where(allowed, logits, MASKED)
    powers = exp(masked - masked.max())
    shares: Scores = powers / powers.sum()
    return shares


def _largest(scores: Scores, count: int) -> NDArray[np.intp]:
    """Return flat indices of the `count` largest scores above zero, largest first; equal scores keep their order."""
    flat = scores.ravel()
    if flat.size > count:
        kept = np.sort(np.argpartition(flat, flat.size - count)[-count:])
        kept = kept[flat[kept] > 0]
    else:
        kept = np.flatnonzero(flat > 0)
    return kept[np.argsort(-flat[kept], kind="stable")]
