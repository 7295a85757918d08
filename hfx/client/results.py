"""What encoders answer: frozen, typed results, and their decoding from a model's output tensors.

Each class is decoded by one function here, so that every way of asking (one text, many, another transport) gives the
same values. Nothing here sends anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfx.client.outputs import as_text, number, scalar, tensor, text, truncated_tokens
from hfx.errors import ServerError
from hfx.names import ANSWER, EMBEDDING, END, ENTITIES, LABEL, SCORE, START

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hfx.client.tensors import Tensors


@dataclass(frozen=True)
class Prediction:
    """A label and its score: a probability unless the model was exported without an activation."""

    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """The best labels of a text, best first.

    `truncated_tokens` counts the tokens that did not fit into the model (at least; 0: the whole text was used).
    """

    predictions: tuple[Prediction, ...]
    truncated_tokens: int = 0

    @property
    def label(self) -> str:
        """The best label."""
        return self.predictions[0].label

    @property
    def score(self) -> float:
        """The best label's score."""
        return self.predictions[0].score


@dataclass(frozen=True)
class Entity:
    """A piece of a text with its label: characters `start` up to `end`, as `text[start:end]` takes them."""

    entity: str
    score: float
    start: int
    end: int
    word: str


@dataclass(frozen=True)
class Entities:
    """The entities of a text in order of appearance; `truncated_tokens` as in Classification."""

    entities: tuple[Entity, ...]
    truncated_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """The part of a context that answers a question best: `context[start:end]`, with its score from 0 to 1."""

    answer: str
    score: float
    start: int
    end: int
    truncated_tokens: int = 0


@dataclass(frozen=True, eq=False)
class Embedding:
    """The vector of a text, float32 of shape [d]; `truncated_tokens` as in Classification."""

    vector: npt.NDArray[np.float32]
    truncated_tokens: int = 0


def decode_classification(outputs: Tensors) -> Classification:
    """From `label` BYTES [1, k], `score` FP32 [1, k]."""
    labels, scores = tensor(outputs, LABEL).ravel(), tensor(outputs, SCORE).ravel()
    if not labels.size or labels.size != scores.size:
        raise ServerError(
            f"The model answered with {labels.size} labels and {scores.size} scores.",
            "Export it again, or ask its author.",
        )
    pairs = zip(labels.tolist(), scores.tolist(), strict=True)
    predictions = tuple(Prediction(as_text(label, LABEL), float(score)) for label, score in pairs)
    return Classification(predictions, truncated_tokens(outputs))


def decode_entities(outputs: Tensors) -> Entities:
    """From `entities` BYTES [1, 1], a JSON list of {entity, score, start, end, word}."""
    try:
        rows = json.loads(scalar(outputs, ENTITIES))
        entities = tuple(
            Entity(str(row["entity"]), float(row["score"]), int(row["start"]), int(row["end"]), str(row["word"]))
            for row in rows
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ServerError(f"The model's entities can't be read: {error!r}.") from error
    return Entities(entities, truncated_tokens(outputs))


def decode_answer(outputs: Tensors) -> Answer:
    """From `answer` BYTES [1, 1], `score` FP32 [1, 1], `start` and `end` INT32 [1, 1]."""
    return Answer(
        answer=text(outputs, ANSWER),
        score=float(scalar(outputs, SCORE)),
        start=number(outputs, START),
        end=number(outputs, END),
        truncated_tokens=truncated_tokens(outputs),
    )


def decode_embedding(outputs: Tensors) -> Embedding:
    """From `embedding` FP32 [1, d]."""
    array = tensor(outputs, EMBEDDING)
    if array.ndim != 2 or array.shape[0] != 1:
        raise ServerError(f"The model's embedding has the shape {list(array.shape)} instead of [1, d].")
    return Embedding(array[0].astype("float32", copy=False), truncated_tokens(outputs))
