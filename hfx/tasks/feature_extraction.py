"""Feature extraction: the vector of a text."""

from __future__ import annotations

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import Answer, FormField, TaskView, output, shown_score

SHOWN_NUMBERS = 4  # of a vector


def lines(answer: Answer) -> list[str]:
    """The first numbers of the vector; of those of tokens, how many there are."""
    vector = answer[names.EMBEDDING]
    if vector and isinstance(vector[0], list):
        return [f"{len(vector)} vectors of {len(vector[0])} numbers (--json prints all)"]
    shown = " ".join(shown_score(number) for number in vector[:SHOWN_NUMBERS])
    more = f" … ({len(vector)} numbers; --json prints all)" if len(vector) > SHOWN_NUMBERS else ""
    return [f"{shown}{more}"]


TEXTS = FormField(
    "inputs",
    "Texts",
    "lines",
    "One in each line; several are compared.",
    "What a lovely garden!\nThe flowers are beautiful.\nThe train is late.",
    is_required=True,
)
TASK = TaskView(
    TASKS[names.Task.FEATURE_EXTRACTION],
    lines=lines,
    columns=lambda labels: (output(names.EMBEDDING, "numbers"),),
    form=(TEXTS,),
)
