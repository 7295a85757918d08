"""Entities of a text, as transformers' TokenClassificationPipeline (4.57) finds them.

Scored tokens become tagged words, and words become groups. The texts of words are made last, because most words belong
to no entity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tokenizer_file import open_tokenizer
from .inputs import Tensors, head, strings
from .text_classification import softmax

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
    """The texts of tokens, from the tokenizer's file; `unk_id` is the id of the unknown token, if there is one."""

    def __init__(self, tokenizer: Any, unk_id: int | None) -> None:
        self._token = tokenizer.id_to_token
        self._decoder = tokenizer.decoder
        self._unk_id = unk_id
        # Models that mark continuations (WordPiece's ##) say where words begin; for others, blanks give a guess.
        self._marks_continuations = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def join(self, words: list[str]) -> str:
        """Return tokens as one text."""
        return str(self._decoder.decode(words)) if self._decoder is not None else " ".join(words)

    def word(self, tokens: Tokens, at: int) -> str:
        """Return a token as it is in the vocabulary; the unknown token as it is in the text."""
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
    """Return every token as a word of its own, with its best tag."""
    tags = tokens.scores.argmax(axis=1)
    scores = tokens.scores[np.arange(len(tags)), tags]
    return Words(range(len(tags) + 1), tags.tolist(), list(scores))


def whole_words(tokens: Tokens, vocabulary: Vocabulary, aggregation: str) -> Words:
    """Return every word with one tag; `aggregation` is first, average or max."""
    starts = [at for at in range(len(tokens.ids)) if at == 0 or not vocabulary.continues(tokens, at)]
    bounds = [*starts, len(tokens.ids)]
    choose = CHOICES[aggregation]
    chosen = [choose(tokens.scores[start:end]) for start, end in pairwise(bounds)]
    tags = [int(scores.argmax()) for scores in chosen]
    return Words(bounds, tags, [scores[tag] for scores, tag in zip(chosen, tags, strict=True)])


# The functions from the scores [tokens, tags] of a word's tokens to the scores of the word.
CHOICES: dict[str, Callable[[Scores], Scores]] = {
    "first": lambda scores: scores[0],
    "average": lambda scores: np.add.reduce(scores, axis=0) / np.float32(len(scores)),
    "max": lambda scores: scores[scores.max(axis=1).argmax()],
}


AGGREGATIONS = ("none", "simple", *CHOICES)
IGNORED = "O"

Entity = dict[str, Any]


class Postprocessor:
    """logits, input_ids, offsets, text_input -> entities.

    The inputs are logits [rows, windows, width, labels], input_ids [rows, windows, width], offsets [rows, windows,
    width, 2] (characters; -1 for tokens that are not of the text), and text_input STRING [rows, 1]; the nets of earlier
    exports read no windows, so that their tensors lack this dimension. The output is entities STRING [rows, 1], a JSON
    list of {entity, score, start, end, word} for each row.
    """

    required: tuple[str, ...] = ("logits", "input_ids", "offsets", "text_input")
    optional: tuple[str, ...] = ()

    def __init__(self, labels: Sequence[str], aggregation: str, vocabulary: Vocabulary) -> None:
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation is {aggregation!r}, not one of {', '.join(AGGREGATIONS)}")
        self._labels = list(labels)
        self._kinds = [_kind(label) for label in labels]
        self._aggregation = aggregation
        self._vocabulary = vocabulary

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """Read settings.json (labels, aggregation, unk_id) and tokenizer.json."""
        tokenizer = open_tokenizer(folder / "tokenizer.json")
        vocabulary = Vocabulary(tokenizer, settings.get("unk_id"))
        return cls(settings["labels"], settings.get("aggregation", "simple"), vocabulary)

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Return the entities of each row."""
        arrays = [tensors[name] for name in ("logits", "input_ids", "offsets")]
        if arrays[1].ndim == 2:
            arrays = [array[:, None] for array in arrays]
        rows = zip(*arrays, tensors["text_input"][:, 0], strict=True)
        return {"entities": strings([[json.dumps(self.entities(*row), ensure_ascii=False)] for row in rows])}

    def entities(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], offsets: NDArray[np.int32], raw: bytes
    ) -> list[Entity]:
        """Return the entities of one text, in UTF-8, from its windows (the first dimension of the arrays)."""
        text = head(raw, max(0, int(offsets.max())))
        # NVIDIA's backend, and rows of one request, are padded to the largest number of windows.
        windows = [at for at, places in enumerate(offsets) if places.max() >= 0]
        entities = [each for at in windows for each in self._in_window(logits[at], ids[at], offsets[at], text)]
        return without_overlap(entities) if len(windows) > 1 else entities

    def _in_window(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], offsets: NDArray[np.int32], text: str
    ) -> list[Entity]:
        of_text = np.flatnonzero(offsets[:, 0] >= 0)
        places = offsets[of_text]
        scores = softmax(logits[of_text, : len(self._labels)])  # an adapter's net may have room for more labels
        tokens = Tokens(text, ids[of_text].tolist(), places.tolist(), scores)
        if self._aggregation in CHOICES:
            words = whole_words(tokens, self._vocabulary, self._aggregation)
            return [*self._grouped(tokens, words)]
        words = single_tokens(tokens)
        return [*(self._ungrouped if self._aggregation == "none" else self._grouped)(tokens, words)]

    def _ungrouped(self, tokens: Tokens, words: Words) -> Iterator[Entity]:
        for at, tag in enumerate(words.tags):
            if self._labels[tag] != IGNORED:
                start, end = tokens.places[at]
                yield _entity(self._labels[tag], words.scores[at], start, end, self._vocabulary.word(tokens, at))

    def _grouped(self, tokens: Tokens, words: Words) -> Iterator[Entity]:
        """Yield an entity for each group of adjacent words of one kind; a word tagged B- begins a new group."""
        first = 0
        for at in range(1, len(words.tags) + 1):
            if at < len(words.tags):
                begins, kind = self._kinds[words.tags[at]]
                if not begins and kind == self._kinds[words.tags[at - 1]][1]:
                    continue
            name = self._labels[words.tags[first]].split("-", 1)[-1]
            if name != IGNORED:
                yield self._joined(name, tokens, words, first, at)
            first = at

    def _joined(self, name: str, tokens: Tokens, words: Words, first: int, end: int) -> Entity:
        """Return the words from `first` up to `end`, without it, as one entity."""
        scores = np.array(words.scores[first:end], np.float32)
        score = np.add.reduce(scores) / np.float32(len(scores))
        text = self._vocabulary.join([self._word(tokens, words, at) for at in range(first, end)])
        begin, stop = tokens.places[words.bounds[first]][0], tokens.places[words.bounds[end] - 1][1]
        return _entity(name, score, begin, stop, text)

    def _word(self, tokens: Tokens, words: Words, at: int) -> str:
        parts = [self._vocabulary.word(tokens, each) for each in range(words.bounds[at], words.bounds[at + 1])]
        # With whole words, the pipeline joins the tokens of each word before it joins words.
        return self._vocabulary.join(parts) if self._aggregation in CHOICES else parts[0]


def without_overlap(entities: Sequence[Entity]) -> list[Entity]:
    """Return the entities of all windows of a text, by start, without those that overlap a longer or surer one.

    Of entities that overlap, the pipeline keeps the longest one, and of equally long ones that with the highest score,
    whichever window it is in.
    """
    kept: list[Entity] = []
    previous: Entity | None = None
    for entity in sorted(entities, key=lambda each: each["start"]):
        if previous is None:
            previous = entity
        if previous["start"] <= entity["start"] < previous["end"]:
            previous = max(previous, entity, key=lambda each: (each["end"] - each["start"], each["score"]))
        else:
            kept.append(previous)
            previous = entity
    return kept if previous is None else [*kept, previous]


def _kind(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and of which kind the entity is; labels without B- or I- continue."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _entity(name: str, score: np.float32, start: int, end: int, word: str) -> Entity:
    return {"entity": name, "score": float(score), "start": start, "end": end, "word": word}
