"""Text classification: labels and their scores."""

from __future__ import annotations

from collections.abc import Sequence

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import Answer, Cell, Column, FormField, TaskView, shown_score, text_field

PROBABILITY = "probability_"
TOP_K = FormField("parameters.top_k", "top_k", "integer", "number of labels", None, "all", "a whole number from 1")


def lines(answer: Answer) -> list[str]:
    """All labels in a line."""
    pairs = zip(answer[names.LABEL], answer[names.SCORE], strict=True)
    return ["\t".join(f"{label} {shown_score(score)}" for label, score in pairs)]


def columns(labels: Sequence[str]) -> tuple[Column, ...]:
    """The best label, its score, and a column for each label."""
    return (
        Column(names.LABEL, "text", lambda answer: answer[names.LABEL][0]),
        Column(names.SCORE, "number", lambda answer: answer[names.SCORE][0]),
        *(_probability(label) for label in labels),
    )


def _probability(label: str) -> Column:
    def cell(answer: Answer) -> Cell:
        score: float = answer[names.SCORE][answer[names.LABEL].index(label)]
        return score

    return Column(PROBABILITY + label, "number", cell)


TASK = TaskView(
    TASKS[names.Task.TEXT_CLASSIFICATION],
    lines=lines,
    columns=columns,
    has_all_labels=True,
    form=(text_field("What a lovely garden!"), TOP_K),
)
