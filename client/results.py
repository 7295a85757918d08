"""What the client returns: frozen, typed results, and their decoding from a model's output tensors.

Each class is decoded by one function here, so that every way of asking (one text, many, another transport) gives the
same values. Nothing here sends anything. Tensors carry a leading batch dimension of 1, as one text is one request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hfx.client.wire import Array, Tensors
from hfx.errors import ServerError
from hfx.names import ANSWER, EMBEDDING, END, ENTITIES, LABEL, SCORE, START, TRUNCATED_TOKENS


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
    labels, scores = _tensor(outputs, LABEL).ravel(), _tensor(outputs, SCORE).ravel()
    predictions = tuple(Prediction(_text(a), float(b)) for a, b in zip(labels, scores, strict=True))
    if not predictions:
        raise ServerError("The model answered without any label.", "Export it again, or ask its author.")
    return Classification(predictions, _truncated(outputs))


def decode_entities(outputs: Tensors) -> Entities:
    """From `entities` BYTES [1, 1], a JSON list of {entity, score, start, end, word}."""
    try:
        rows = json.loads(_tensor(outputs, ENTITIES).item())
        entities = tuple(
            Entity(str(row["entity"]), float(row["score"]), int(row["start"]), int(row["end"]), str(row["word"]))
            for row in rows
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ServerError(f"The model's entities can't be read: {error!r}.") from error
    return Entities(entities, _truncated(outputs))


def decode_answer(outputs: Tensors) -> Answer:
    """From `answer` BYTES [1, 1], `score` FP32 [1, 1], `start` and `end` INT32 [1, 1]."""
    return Answer(
        answer=_text(_scalar(outputs, ANSWER)),
        score=float(_scalar(outputs, SCORE)),
        start=int(_scalar(outputs, START)),
        end=int(_scalar(outputs, END)),
        truncated_tokens=_truncated(outputs),
    )


def decode_embedding(outputs: Tensors) -> Embedding:
    """From `embedding` FP32 [1, d]."""
    return Embedding(_tensor(outputs, EMBEDDING)[0].astype(np.float32, copy=False), _truncated(outputs))


def _truncated(outputs: Tensors) -> int:
    return int(_scalar(outputs, TRUNCATED_TOKENS)) if TRUNCATED_TOKENS in outputs else 0


def _tensor(outputs: Tensors, name: str) -> Array:
    if name not in outputs:
        raise ServerError(
            f"The model's answer has no tensor {name!r} but {', '.join(sorted(outputs))}.",
            "Is it a model for this task? `hfx list` tells.",
        )
    return outputs[name]


def _scalar(outputs: Tensors, name: str) -> Any:
    array = _tensor(outputs, name)
    if array.size != 1:
        raise ServerError(f"The model's tensor {name!r} has {array.size} values instead of one.")
    return array.item()


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("utf-8", "replace")
