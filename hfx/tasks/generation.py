"""The tasks of generators, which differ by what they were trained for."""

from __future__ import annotations

from hfx import names
from hfx.python_backends.tasks import Task
from hfx.tasks.task import Answer, Column, TaskView, text_field

DOCUMENT = (
    "Anna went to Oslo by train. The journey took two hours longer than planned, because snow had blocked the line. "
    "In the evening she walked through a garden, and wrote to her friends that the town was lovely all the same."
)


def lines(answer: Answer) -> list[str]:
    """The text, or the texts."""
    text = answer[names.TEXT_OUTPUT]
    return text if isinstance(text, list) else [text]


def _generator(column: str, text: str) -> TaskView:
    return TaskView(
        Task(names.TEXT_OUTPUT, options={names.TOP_K: int}),
        lines=lines,
        columns=lambda labels: (Column(column, "text", lambda answer: answer[names.TEXT_OUTPUT]),),
        form=(text_field(text),),
    )


TEXT_GENERATION = _generator("generated_text", "Once upon a time")
SUMMARIZATION = _generator("summary", DOCUMENT)
TEXT2TEXT_GENERATION = _generator("generated_text", DOCUMENT)
TRANSLATION = _generator("translation", "What a lovely garden!")
