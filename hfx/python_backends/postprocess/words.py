"""From a text's scored tokens to tagged words: the rules of transformers' TokenClassificationPipeline (4.57) for what
belongs to one word, and which tag and score a word gets.

Knows no tensors of a request, no names of tags and no groups of words. Texts of words are made late: most words are
of no entity, and nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: their ids, the characters (start, end) that they stand for, their scores [tokens, tags]."""

    text: str
    ids: Sequence[int]
    places: Sequence[Sequence[int]]
    scores: Scores


@dataclass(frozen=True)
class Words:
    """Words as runs of tokens, bounds[i] to bounds[i + 1], each with its tag and that tag's score."""

    bounds: Sequence[int]
    tags: Sequence[int]
    scores: Sequence[np.float32]


class Vocabulary:
    """What the tokenizer's file knows about tokens; `unk_id` is the id of the unknown token, if there is one."""

    def __init__(self, tokenizer: Any, unk_id: int | None) -> None:
        self._token = tokenizer.id_to_token
        self._decoder = tokenizer.decoder
        self._unk_id = unk_id
        # A model that marks continuations (WordPiece's ##) knows where words begin; others are guessed by blanks.
        self._marks_continuations = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def join(self, words: list[str]) -> str:
        """Tokens as text."""
        return str(self._decoder.decode(words)) if self._decoder is not None else " ".join(words)

    def word(self, tokens: Tokens, at: int) -> str:
        """A token as the vocabulary has it; the unknown token as the text has it."""
        if tokens.ids[at] == self._unk_id:
            start, end = tokens.places[at]
            return tokens.text[start:end]
        return str(self._token(tokens.ids[at]))

    def continues(self, tokens: Tokens, at: int) -> bool:
        """Whether a token belongs to the word of the token before it."""
        if tokens.ids[at] == self._unk_id:
            return False
        start, end = tokens.places[at]
        if self._marks_continuations:
            return len(self._token(tokens.ids[at])) != len(tokens.text[start:end])
        return start > 0 and " " not in tokens.text[start - 1 : start + 1]


def single_tokens(tokens: Tokens) -> Words:
    """Every token a word of its own, with its best tag."""
    tags = tokens.scores.argmax(axis=1)
    scores = tokens.scores[np.arange(len(tags)), tags]
    return Words(range(len(tags) + 1), tags.tolist(), list(scores))


def whole_words(tokens: Tokens, vocabulary: Vocabulary, aggregation: str) -> Words:
    """Every word with one tag; `aggregation` is first, average or max."""
    starts = [at for at in range(len(tokens.ids)) if at == 0 or not vocabulary.continues(tokens, at)]
    bounds = [*starts, len(tokens.ids)]
    choose = CHOICES[aggregation]
    chosen = [choose(tokens.scores[start:end]) for start, end in pairwise(bounds)]
    tags = [int(scores.argmax()) for scores in chosen]
    return Words(bounds, tags, [scores[tag] for scores, tag in zip(chosen, tags, strict=True)])


def _average(scores: Scores) -> Scores:
    average: Scores = np.add.reduce(scores, axis=0) / np.float32(len(scores))
    return average


def _surest(scores: Scores) -> Scores:
    surest: Scores = scores[scores.max(axis=1).argmax()]
    return surest


# From the scores [tokens, tags] of a word's tokens to the word's.
CHOICES: dict[str, Callable[[Scores], Scores]] = {
    "first": lambda scores: scores[0],
    "average": _average,
    "max": _surest,
}
