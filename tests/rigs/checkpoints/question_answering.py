"""The rules of transformers' question-answering pipeline, which transformers 5 no longer has.

They are written from the pipeline's behaviour in 4.57.6, and compared with the pipeline wherever that version is
installed (tests/transformers4). The code is naive and slow on purpose: it is the reference for the answers that hfx
serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 384
OVERLAP = 128
LONGEST_ANSWER = 15  # tokens
IMPOSSIBLE = -10000.0  # the logit of a token that may not be part of an answer

Answer = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """A part of a context behind its question, as the model reads it; `allowed` tokens may be part of an answer."""

    inputs: dict[str, list[int]]
    allowed: NDArray[np.bool_]
    encoding: Any


def windows(tokenizer: Any, question: str, context: str, doc_stride: int | None = None) -> list[Window]:
    """Return the windows over `context`, each behind the question (before it if the tokenizer pads on the left)."""
    question_first = tokenizer.padding_side == "right"
    length = min(tokenizer.model_max_length, WINDOW)
    encoded = tokenizer(
        *((question, context) if question_first else (context, question)),
        truncation="only_second" if question_first else "only_first",
        max_length=length,
        stride=min(length // 2, OVERLAP) if doc_stride is None else doc_stride,
        return_token_type_ids=True,
        return_overflowing_tokens=True,
    )
    found = []
    for index, ids in enumerate(encoded["input_ids"]):
        allowed = np.array([not question_first or sequence == 1 for sequence in encoded.sequence_ids(index)])
        if tokenizer.cls_token_id is not None:
            allowed |= np.array(ids) == tokenizer.cls_token_id
        inputs = {name: encoded[name][index] for name in (*tokenizer.model_input_names, "token_type_ids")}
        found.append(Window(inputs, allowed, encoded[index]))
    return found


def best_answer(model: Any, tokenizer: Any, question: str, context: str) -> Answer | None:
    """Return `answer`, `score`, and `start` and `end` in the characters of `context`; None if there is no answer."""
    return next(iter(best_answers(model, tokenizer, question, context)), None)


def best_answers(
    model: Any,
    tokenizer: Any,
    question: str,
    context: str,
    top_k: int = 1,
    max_answer_len: int = LONGEST_ANSWER,
    doc_stride: int | None = None,
    handle_impossible_answer: bool = False,
) -> list[Answer]:
    """Return the best answers, best first; the settings have the names of the pipeline's."""
    sequence = int(tokenizer.padding_side == "right")
    answers: list[Answer] = []
    nothing: list[float] = []
    for window in windows(tokenizer, question, context, doc_stride):
        starts, ends = scores(model, window, tokenizer.model_input_names)
        nothing.append(float(starts[0] * ends[0]))
        starts[0] = ends[0] = 0.0
        for first, last, score in spans(starts, ends, window, max_answer_len, 2 * top_k + 10):
            start, end = characters(window.encoding, first, last, sequence)
            text = context[start:end]
            known = next((each for each in answers if each["answer"].lower() == text.lower()), None)
            if known is None:
                answers.append({"answer": text, "score": score, "start": start, "end": end})
            else:
                known["score"] += score
    if handle_impossible_answer:
        answers.append({"answer": "", "score": min(nothing), "start": 0, "end": 0})
    return sorted(answers, key=lambda answer: float(answer["score"]), reverse=True)[:top_k]


def scores(model: Any, window: Window, names: list[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return for each token the likelihood that an answer starts or ends there."""
    import torch

    with torch.no_grad():
        output = model(**{name: torch.tensor([window.inputs[name]]) for name in names})
    starts = probabilities(output.start_logits[0].numpy(), window.allowed)
    return starts, probabilities(output.end_logits[0].numpy(), window.allowed)


def spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], window: Window, longest: int, count: int
) -> Iterator[tuple[int, int, float]]:
    """Yield first token, last token and score of each of the best `count` spans that may be an answer."""
    length = len(window.allowed)
    found = [
        (first, last, starts[first] * ends[last])
        for first in range(length)
        for last in range(first, min(first + longest, length))
    ]
    found.sort(key=lambda span: -span[2])
    for first, last, score in found[:count]:
        if window.allowed[first] and window.allowed[last]:
            yield first, last, float(score)


def probabilities(logits: NDArray[np.float32], allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the probability of each token; the first token's is that of no answer."""
    masked = np.where(allowed, logits, np.float32(IMPOSSIBLE))
    shares = np.exp(masked - masked.max())
    return shares / shares.sum()


def characters(encoding: Any, first: int, last: int, sequence: int) -> tuple[int, int]:
    """Return the first character of the first token's word, and the end of the last token's word."""
    try:
        start, _ = encoding.word_to_chars(encoding.token_to_word(first), sequence)
        _, end = encoding.word_to_chars(encoding.token_to_word(last), sequence)
    except (TypeError, ValueError, OverflowError):  # a special token, which is of no word
        return int(encoding.offsets[first][0]), int(encoding.offsets[last][1])
    return int(start), int(end)
