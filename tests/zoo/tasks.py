"""The closed table of tasks: where a task's data comes from, how it is learned, which files decide both.

Owns the names of tasks; knows no architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.zoo.data import answers, entities, nli, sentiment, similarity, stories, topics
from tests.zoo.examples import Split
from tests.zoo.objectives import classification, entailed_text, multilabel, spans, tagging
from tests.zoo.objectives import similarity as embedding
from tests.zoo.objectives.objective import Objective


@dataclass(frozen=True)
class Task:
    """`generate(split, count)` makes examples; `sources` are the files of this package that decide what is learned."""

    generate: Callable[[Split, int], Sequence[Any]]
    objective: Objective | None
    sources: tuple[str, ...]


TASKS: dict[str, Task] = {
    "sentiment": Task(
        sentiment.generate,
        classification.objective(sentiment.LABELS, lambda e: [e.text]),
        ("data/sentiment.py", "objectives/classification.py"),
    ),
    "topics": Task(
        topics.generate,
        multilabel.objective(topics.LABELS, lambda e: str(e.text)),
        ("data/topics.py", "objectives/multilabel.py"),
    ),
    "nli": Task(
        nli.generate,
        classification.objective(nli.LABELS, lambda e: [e.premise, e.hypothesis], entailed_text.warm_up()),
        ("data/nli.py", "data/topics.py", "objectives/classification.py", "objectives/entailed_text.py"),
    ),
    "entities": Task(
        entities.generate, tagging.objective(entities.LABELS), ("data/entities.py", "objectives/tagging.py")
    ),
    "answers": Task(answers.generate, spans.objective(), ("data/answers.py", "objectives/spans.py")),
    "similarity": Task(
        similarity.generate,
        embedding.objective(),
        ("data/similarity.py", "objectives/similarity.py", "sentence_transformers_files.py"),
    ),
    "stories": Task(stories.generate, None, ("data/stories.py",)),
}
