"""Fill-mask: the tokens that fit in place of each mask of a text."""

from __future__ import annotations

import json
from typing import Any

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import Answer, FormField, TaskView, json_output, shown_score, text_field

# The mask tokens of BERT's, RoBERTa's and XLM's tokenizers: one of them is a model's own, the others are words to it.
PROBE = "[MASK] <mask> <special1>"
TOP_K = FormField("parameters.top_k", "top_k", "integer", "the best tokens only", 5, 5, "a whole number from 1")
TARGETS = FormField("parameters.targets", "targets", "lines", "these tokens only; one in each line")


def fills(answer: Answer) -> list[list[dict[str, Any]]]:
    """A list for each mask of score, token, token_str and sequence; of the JSON text that the tensor holds, too."""
    value = answer[names.FILLS]
    rows: list[list[dict[str, Any]]] = json.loads(value) if isinstance(value, str) else value
    return rows


def lines(answer: Answer) -> list[str]:
    """The tokens of each mask in a line."""
    return ["\t".join(f"{each['token_str']} {shown_score(each['score'])}" for each in row) for row in fills(answer)]


TASK = TaskView(
    TASKS[names.Task.FILL_MASK],
    lines=lines,
    columns=lambda labels: (json_output(names.FILLS),),
    form=(text_field("Anna went to [MASK] by train."), TOP_K, TARGETS),
    example="'Anna went to [MASK] by train.'",
    probe=PROBE,
)
