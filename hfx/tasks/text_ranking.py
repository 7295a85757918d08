"""Text ranking: the score of a text for a query, or a pair's score for each label."""

from __future__ import annotations

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import Answer, FormField, TaskView, output, shown_score


def lines(answer: Answer) -> list[str]:
    """The scores in a line."""
    scores = answer[names.SCORE]
    return ["\t".join(map(shown_score, scores if isinstance(scores, list) else [scores]))]


QUERY = FormField("inputs.query", "Query", "line", value="How did she travel?", is_required=True)
TEXTS = FormField(
    "inputs.texts",
    "Texts",
    "lines",
    "One in each line.",
    "Anna went to Oslo by train.\nThe garden was lovely.\nSnow had blocked the line.",
    is_required=True,
)
TASK = TaskView(
    TASKS[names.Task.TEXT_RANKING],
    lines=lines,
    columns=lambda labels: (output(names.SCORE, "number"),),
    form=(QUERY, TEXTS),
    example="'A garden.' 'A train.' --query 'Which plants grow here?'",
)
