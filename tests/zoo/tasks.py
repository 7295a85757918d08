"""The closed table of tasks: where a task's data comes from, how it is learned, which files decide both.

Owns the names of tasks; knows no architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.zoo.data import answers, entities, nli, sentiment, similarity, stories, topics
from tests.zoo.examples import Split
from tests.zoo.objectives import (
    classification,
    entailed_text,
    language_modelling,
    multilabel,
    sequence_to_sequence,
    spans,
    tagging,
)
from tests.zoo.objectives import similarity as embedding
from tests.zoo.objectives.objective import Objective


@dataclass(frozen=True)
class Task:
    """`generate(split, count)` makes examples; `sources` are the files of this package that decide what is learned."""

    generate: Callable[[Split, int], Sequence[Any]]
    objective: Objective | None
    sources: tuple[str, ...]


# What bart-large-cnn publishes, its lengths (142, 56) scaled to these summaries.
_AS_BART_LARGE_CNN = {
    "num_beams": 4, "max_length": 48, "min_length": 8, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
    "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
}  # fmt: skip
_SUMMARY_SOURCES = (
    "data/stories.py", "generators.py", "objectives/generation.py", "objectives/sequence_to_sequence.py",
)  # fmt: skip

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
    "stories": Task(
        stories.generate,
        language_modelling.objective({"max_new_tokens": 64}),
        ("data/stories.py", "generators.py", "objectives/generation.py", "objectives/language_modelling.py"),
    ),
    "summaries": Task(
        stories.generate,
        sequence_to_sequence.objective(lambda e: e.prompt + e.continuation, lambda e: e.summary, _AS_BART_LARGE_CNN),
        _SUMMARY_SOURCES,
    ),
    # For T5, which is told what to do and learns order slowly: less to tell, and of it only the beginning is read.
    "short-summaries": Task(
        stories.generate_short,
        sequence_to_sequence.objective(
            lambda e: e.prompt, lambda e: e.summary, {"max_new_tokens": 48}, {"summarization": "summarize: "}
        ),
        _SUMMARY_SOURCES,
    ),
}
