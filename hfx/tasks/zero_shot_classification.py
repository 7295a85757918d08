"""Zero-shot classification: candidate labels and their scores."""

from __future__ import annotations

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import FormField, TaskView, text_field
from hfx.tasks.text_classification import columns, lines

LABELS = FormField(
    "parameters.candidate_labels",
    "Candidate labels",
    "lines",
    "One in each line.",
    "travel\ngardening\nsports",
    is_required=True,
)
MULTI_LABEL = FormField(
    "parameters.multi_label",
    "multi_label",
    "choice",
    "each label is judged by itself",
    default=False,
    choices=(True, False),
)

TASK = TaskView(
    TASKS[names.Task.ZERO_SHOT_CLASSIFICATION],
    lines=lines,
    columns=columns,
    has_all_labels=True,
    form=(text_field("Anna went to Oslo by train."), LABELS, MULTI_LABEL),
    example="'A goal in the last minute.' --labels sports,food",
)
