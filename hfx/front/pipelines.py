"""Results in the forms of transformers' pipelines and of the hub's tasks, which several dialects have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hfx.client.results import Classification, Entities, Fills, Rank, best_first
from hfx.names import Task

# The field of a generated text; others have `generated_text`.
TEXT_FIELDS = {Task.SUMMARIZATION: "summary_text", Task.TRANSLATION: "translation_text"}


def text_field(task: Task) -> str:
    """The name of the field that has a generator's text."""
    return TEXT_FIELDS.get(task, "generated_text")


def labels(result: Classification) -> list[dict[str, Any]]:
    """The labels of a text, best first."""
    return [{"label": each.label, "score": each.score} for each in result.predictions]


def ranking(ranks: Sequence[Rank], texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """`ranks`, best first, each with its text where there are `texts`."""
    rows = [{"index": each.index, "score": each.score} for each in best_first(ranks)]
    return rows if texts is None else [{**row, "text": texts[int(row["index"])]} for row in rows]


def fills(result: Fills) -> list[Any]:
    """The tokens for the mask of a text; where there are several, a list for each."""
    rows = [[asdict(each) for each in mask] for mask in result.masks]
    return rows[0] if len(rows) == 1 else rows


def entities(result: Entities, aggregation: str) -> list[dict[str, Any]]:
    """The entities of a text; a label is that of a token where the model was exported without `aggregation`."""
    label = "entity" if aggregation == "none" else "entity_group"
    return [
        {label: each.entity, "score": each.score, "word": each.word, "start": each.start, "end": each.end}
        for each in result.entities
    ]
