"""From a text's tagged tokens to its words, for tokenizers that split words: the rules of transformers'
TokenClassificationPipeline (4.57) for what belongs to one word, and which tag and score the word gets.

Knows no tensors of a request and no groups of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Token:
    """A token or, after merging, a word: its text in the vocabulary, characters of the text, scores of all tags."""

    word: str
    start: int
    end: int
    scores: Scores
    inside_word: bool = False


@dataclass(frozen=True)
class Tagged:
    """A token or word with the tag chosen for it."""

    tag: int
    score: np.float32
    word: str
    start: int
    end: int


class Vocabulary:
    """What the tokenizer's file knows about tokens; `unk_id` is the id of the unknown token, if there is one."""

    def __init__(self, tokenizer: Any, unk_id: int | None) -> None:
        self._tokenizer = tokenizer
        self._unk_id = unk_id
        # A model that marks continuations (WordPiece's ##) knows where words begin; others are guessed by blanks.
        self._marks_continuations = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def join(self, words: Sequence[str]) -> str:
        """Tokens as text."""
        decoder = self._tokenizer.decoder
        return decoder.decode(list(words)) if decoder is not None else " ".join(words)

    def tokens(self, text: str, ids: Sequence[int], places: Sequence[Sequence[int]], scores: Scores) -> list[Token]:
        """The tokens `ids` of `text` that stand at `places`, with their `scores` [tokens, tags]."""
        return [self._token(text, *each) for each in zip(ids, places, scores, strict=True)]

    def _token(self, text: str, token_id: int, place: Sequence[int], scores: Scores) -> Token:
        start, end = place
        shown = text[start:end]
        if token_id == self._unk_id:
            return Token(shown, start, end, scores)
        word = self._tokenizer.id_to_token(token_id)
        if self._marks_continuations:
            inside = len(word) != len(shown)
        else:
            inside = start > 0 and " " not in text[start - 1 : start + 1]
        return Token(word, start, end, scores, inside)


def tag_each(tokens: Sequence[Token]) -> list[Tagged]:
    """Every token with its own best tag."""
    return [_tagged(token.scores, token.word, token) for token in tokens]


def tag_words(tokens: Sequence[Token], vocabulary: Vocabulary, aggregation: str) -> list[Tagged]:
    """Every word with one tag; `aggregation` is first, average or max."""
    choose = CHOICES[aggregation]
    return [
        _tagged(choose(word), vocabulary.join([token.word for token in word]), word[0], word[-1])
        for word in _split(tokens)
    ]


def _tagged(scores: Scores, text: str, first: Token, last: Token | None = None) -> Tagged:
    tag = int(scores.argmax())
    return Tagged(tag, scores[tag], text, first.start, (last or first).end)


def _split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    word: list[Token] = []
    for token in tokens:
        if word and not token.inside_word:
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _average(word: Sequence[Token]) -> Scores:
    stacked = np.stack([token.scores for token in word])
    average: Scores = np.add.reduce(stacked, axis=0) / np.float32(len(word))
    return average


CHOICES: dict[str, Callable[[Sequence[Token]], Scores]] = {
    "first": lambda word: word[0].scores,
    "average": _average,
    "max": lambda word: max(word, key=lambda token: token.scores.max()).scores,
}
