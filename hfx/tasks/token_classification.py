"""Token classification: the entities of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx import names
from hfx.python_backends.tasks import TASKS
from hfx.tasks.task import TaskView, json_output, shown_score, text_field


def entity_line(entity: Mapping[str, Any]) -> str:
    """An entity, its words, its score and its place."""
    where = f"{entity['start']}-{entity['end']}"
    return f"{entity['entity']}\t{entity['word']}\t{shown_score(entity['score'])}\t{where}"


TASK = TaskView(
    TASKS[names.Task.TOKEN_CLASSIFICATION],
    lines=lambda answer: [entity_line(entity) for entity in answer[names.ENTITIES]] or ["(no entities)"],
    columns=lambda labels: (json_output(names.ENTITIES),),
    form=(text_field("Anna met Erik in Oslo, and they travelled to Berlin."),),
)
