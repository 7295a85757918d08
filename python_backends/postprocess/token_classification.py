"""Entities of a text, as transformers' TokenClassificationPipeline (4.57) groups them.

Owns the groups of tagged words and the JSON that clients get; what a word is stands in words.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .inputs import Tensors, head, strings
from .text_classification import softmax
from .words import CHOICES, Tagged, Vocabulary, tag_each, tag_words

AGGREGATIONS = ("none", "simple", *CHOICES)
IGNORED = "O"

Entity = dict[str, Any]


class Postprocessor:
    """logits [rows, width, labels], input_ids [rows, width], offsets [rows, width, 2] (characters; -1 for tokens that
    are not of the text), text_input STRING [rows, 1] -> entities STRING [rows, 1], a JSON list of
    {entity, score, start, end, word} each.
    """

    required: tuple[str, ...] = ("logits", "input_ids", "offsets", "text_input")
    optional: tuple[str, ...] = ()

    def __init__(self, labels: Sequence[str], aggregation: str, vocabulary: Vocabulary) -> None:
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation is {aggregation!r}, not one of {', '.join(AGGREGATIONS)}")
        self._labels = list(labels)
        self._aggregation = aggregation
        self._vocabulary = vocabulary

    @classmethod
    def read(cls, settings: Mapping[str, Any], folder: Path) -> Postprocessor:
        """From settings.json (labels, aggregation, unk_id) and tokenizer.json."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = Vocabulary(tokenizer, settings.get("unk_id"))
        return cls(settings["labels"], settings.get("aggregation", "simple"), vocabulary)

    def answer(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The entities of each row."""
        rows = zip(
            tensors["logits"], tensors["input_ids"], tensors["offsets"], tensors["text_input"][:, 0], strict=True
        )
        found = [[json.dumps(self.entities(*row), ensure_ascii=False)] for row in rows]
        return {"entities": strings(found)}

    def entities(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], offsets: NDArray[np.int32], raw: bytes
    ) -> list[Entity]:
        """The entities of one text: logits [width, labels], ids [width], offsets [width, 2], the text in UTF-8."""
        of_text = np.flatnonzero(offsets[:, 0] >= 0)
        places = offsets[of_text].tolist()
        text = head(raw, max((end for _, end in places), default=0))
        tokens = self._vocabulary.tokens(text, ids[of_text].tolist(), places, softmax(logits[of_text]))
        if self._aggregation in CHOICES:
            return self._groups(tag_words(tokens, self._vocabulary, self._aggregation))
        if self._aggregation == "simple":
            return self._groups(tag_each(tokens))
        return [
            _entity(self._labels[each.tag], each.score, each.start, each.end, each.word)
            for each in tag_each(tokens)
            if self._labels[each.tag] != IGNORED
        ]

    def _groups(self, words: Sequence[Tagged]) -> list[Entity]:
        """Neighbours of one kind joined; a word tagged B- begins a new group."""
        groups: list[tuple[str, list[Tagged]]] = []
        for word in words:
            begins, kind = _kind(self._labels[word.tag])
            if groups and groups[-1][0] == kind and not begins:
                groups[-1][1].append(word)
            else:
                groups.append((kind, [word]))
        named = ((self._labels[members[0].tag].split("-", 1)[-1], members) for _, members in groups)
        return [self._joined(name, members) for name, members in named if name != IGNORED]

    def _joined(self, name: str, members: Sequence[Tagged]) -> Entity:
        scores = np.array([member.score for member in members], np.float32)
        score = np.add.reduce(scores) / np.float32(len(members))
        word = self._vocabulary.join([member.word for member in members])
        return _entity(name, score, members[0].start, members[-1].end, word)


def _kind(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and of which kind the entity is; labels without B- or I- continue."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


def _entity(name: str, score: np.float32, start: int, end: int, word: str) -> Entity:
    return {"entity": name, "score": float(score), "start": start, "end": end, "word": word}
