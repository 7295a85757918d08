"""Question answering: the part of a context that answers a question."""

from __future__ import annotations

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.generation import DOCUMENT
from hfx.tasks.task import Answer, FormField, TaskView, output, shown_score


def lines(answer: Answer) -> list[str]:
    """The answer, its score and its place."""
    where = f"{answer[names.START]}-{answer[names.END]}"
    return [f"{answer[names.ANSWER] or '(no answer)'}\t{shown_score(answer[names.SCORE])}\t{where}"]


TASK = TaskView(
    TASKS[names.Task.QUESTION_ANSWERING],
    lines=lines,
    columns=lambda labels: (
        output(names.ANSWER, "text"),
        output(names.SCORE, "number"),
        output(names.START, "integer"),
        output(names.END, "integer"),
    ),
    form=(
        FormField("inputs.question", "Question", "line", value="Where did Anna go?", is_required=True),
        FormField("inputs.context", "Context", "text", value=DOCUMENT, is_required=True),
    ),
    example="'Who came?' --context 'Ada came.'",
)
