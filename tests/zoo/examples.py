"""The labelled examples that the zoo's world yields, one frozen dataclass a task.

Owns the shapes of the data only: what a label means is in `data/`, how a model learns it is in `objectives/`.
`key` names the combination of words that decides an example's label; train and held-out examples share no key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "heldout"]
Key = tuple[str, ...]


@dataclass(frozen=True)
class SentimentExample:
    """A review or a remark, and whether it is negative, neutral or positive."""

    text: str
    label: str
    key: Key


@dataclass(frozen=True)
class TopicsExample:
    """A text and the topics it touches, none of them included (sorted, without repetition)."""

    text: str
    labels: tuple[str, ...]
    key: Key


@dataclass(frozen=True)
class NliExample:
    """A premise, a hypothesis, and contradiction, neutral or entailment."""

    premise: str
    hypothesis: str
    label: str
    key: Key


@dataclass(frozen=True)
class Entity:
    """A named span: `text == sentence[start:end]`, `label` is PER, LOC or ORG."""

    text: str
    label: str
    start: int
    end: int


@dataclass(frozen=True)
class EntitiesExample:
    """A sentence and the entities in it, in order, none overlapping."""

    text: str
    entities: tuple[Entity, ...]
    key: Key


@dataclass(frozen=True)
class AnswersExample:
    """A question and a context; `answer == context[start:start + len(answer)]`, at a character."""

    question: str
    context: str
    answer: str
    start: int
    key: Key


@dataclass(frozen=True)
class SimilarExample:
    """Two sentences and how much of their meaning they share, 0 to 1."""

    first: str
    second: str
    score: float
    key: Key


@dataclass(frozen=True)
class StoryExample:
    """The beginning of a story, how it goes on, and a summary of the whole."""

    prompt: str
    continuation: str
    summary: str
    key: Key


Example = (
    SentimentExample | TopicsExample | NliExample | EntitiesExample | AnswersExample | SimilarExample | StoryExample
)
