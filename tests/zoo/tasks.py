"""The closed table of tasks: where a task's data comes from, how it is learned, which files decide both."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.zoo.data import answers, entities, nli, sentiment, similarity, stories, topics
from tests.zoo.objectives import (
    classification,
    entailed_text,
    labelled,
    language_modelling,
    sequence_to_sequence,
    spans,
    tagging,
)
from tests.zoo.objectives import similarity as embedding
from tests.zoo.objectives.objective import Objective


@dataclass(frozen=True)
class Task:
    """`compose(rng)` makes an example; `data` is the seed of those that are drawn.

    `sources` are the files of this package that decide what is learned.
    """

    data: str
    compose: Callable[[random.Random], Any]
    objective: Objective
    sources: tuple[str, ...]


# What bart-large-cnn publishes, its lengths (142, 56) scaled to these summaries.
_AS_BART_LARGE_CNN = {
    "num_beams": 4, "max_length": 48, "min_length": 8, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
    "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
}  # fmt: skip
_SUMMARY_SOURCES = ("data/stories.py", "objectives/sequence_to_sequence.py")

TASKS: dict[str, Task] = {
    "sentiment": Task(
        "sentiment",
        sentiment.compose,
        classification.single_label(sentiment.LABELS, lambda e: [e.text]),
        ("data/sentiment.py", "objectives/classification.py"),
    ),
    "topics": Task(
        "topics",
        topics.compose,
        classification.multi_label(topics.LABELS, lambda e: str(e.text)),
        ("data/topics.py", "objectives/classification.py"),
    ),
    "nli": Task(
        "nli",
        nli.compose,
        classification.single_label(nli.LABELS, lambda e: [e.premise, e.hypothesis], entailed_text.warm_up()),
        ("data/nli.py", "data/topics.py", "objectives/classification.py", "objectives/entailed_text.py"),
    ),
    "entities": Task(
        "entities",
        entities.compose,
        tagging.objective(entities.LABELS),
        ("data/entities.py", "objectives/tagging.py"),
    ),
    "labelled-entities": Task(
        "entities", entities.compose, labelled.spans(), ("data/entities.py", "data/topics.py", "objectives/labelled.py")
    ),
    "labelled-topics": Task(
        "topics", topics.compose, labelled.texts(), ("data/entities.py", "data/topics.py", "objectives/labelled.py")
    ),
    "answers": Task("answers", answers.compose, spans.objective(), ("data/answers.py", "objectives/spans.py")),
    "similarity": Task(
        "similarity",
        similarity.compose,
        embedding.objective(),
        ("data/similarity.py", "objectives/similarity.py"),
    ),
    "stories": Task(
        "stories",
        stories.compose,
        language_modelling.objective({"max_new_tokens": 64}),
        ("data/stories.py", "objectives/language_modelling.py"),
    ),
    "summaries": Task(
        "stories",
        stories.compose,
        sequence_to_sequence.objective(lambda e: e.prompt + e.continuation, lambda e: e.summary, _AS_BART_LARGE_CNN),
        _SUMMARY_SOURCES,
    ),
    # For T5, which is told what to do and learns order slowly: less to tell, and of it only the beginning is read.
    "short-summaries": Task(
        "short stories",
        stories.compose_short,
        sequence_to_sequence.objective(
            lambda e: e.prompt, lambda e: e.summary, {"max_new_tokens": 48}, {"summarization": "summarize: "}
        ),
        _SUMMARY_SOURCES,
    ),
}
