"""Labelled data from the user's table: requests of a task, and what the right answers are.

Columns are found by their usual names unless they are given.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.generation.tasks import GenerationTask
from hfx.exporter.tasks.task import Config, EncoderTask, Request, labels_of
from hfx.rows import RowError, read_rows

MOST_ROWS = 100_000
INPUT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    names.TEXT_INPUT: ("text_input", "text", "sentence", "input"),
    names.QUESTION: ("question",),
    names.CONTEXT: ("context", "passage"),
    names.CANDIDATE_LABELS: ("candidate_labels", "candidates"),
    names.QUERY: ("query",),
}
PAIR_COLUMNS = (("first", "second"), ("text1", "text2"), ("sentence1", "sentence2"), ("text_a", "text_b"))
TARGET_COLUMNS = ("target", "label", "labels", "entities", "answer", "answers", "score", "similarity")
TEXT_COLUMNS = ("target", "summary", "text_output", "output", "answer")


@dataclass(frozen=True)
class LabelledData:
    """Requests and targets. Embeddings have two requests a target: the texts of a pair in turn."""

    requests: tuple[Request, ...]
    targets: tuple[str, ...]


def read_data(
    path: Path,
    task: EncoderTask | GenerationTask,
    config: Config,
    input_columns: Sequence[str] = (),
    target_column: str | None = None,
) -> LabelledData:
    """The rows of `path` for `task`. UsageError names the file, the line or column, and what was found.

    `input_columns` are given in the order of the task's inputs (question, context) or of a pair's texts.
    """
    rows = _rows(path)
    header = list(rows[0])
    usual = TEXT_COLUMNS if task.task in names.GENERATION_TASKS else TARGET_COLUMNS
    target = _column(path, header, (target_column,) if target_column else usual)
    columns = _input_columns(path, header, task, input_columns)
    requests: list[Request] = [
        {tensor: _value(tensor, row[column]) for tensor, column in request.items()}
        for row in rows
        for request in columns
    ]
    targets = [row[target] for row in rows]
    if task.task is names.Task.TEXT_CLASSIFICATION:
        targets = [_label(text, labels_of(config)) for text in targets]
    return LabelledData(tuple(requests), tuple(targets))


def _rows(path: Path) -> list[dict[str, str]]:
    rows = [row.cells for row in itertools.islice(read_rows(path).rows, MOST_ROWS + 1)]
    if len(rows) > MOST_ROWS:
        raise RowError(path, f"it has over {MOST_ROWS} rows.", "Take a sample of it.")
    if not rows:
        raise RowError(path, "it has no rows.", "It needs a header and at least one row.")
    return [{name: _text(cell) for name, cell in row.items()} for row in rows]


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)


def _column(path: Path, header: list[str], candidates: Sequence[str]) -> str:
    for name in candidates:
        if name in header:
            return name
    raise UsageError(
        f"{path} has none of the columns {', '.join(candidates)}; it has {', '.join(header)}.",
        "Rename a column, or give it by --input-column / --target-column.",
    )


def _input_columns(
    path: Path, header: list[str], task: EncoderTask | GenerationTask, given: Sequence[str]
) -> list[dict[str, str]]:
    """For each request that a row makes: tensor name -> column."""
    if task.task is names.Task.FEATURE_EXTRACTION:
        pair = next((p for p in ((tuple(given),) if given else PAIR_COLUMNS) if set(p) <= set(header)), None)
        if pair is None or len(pair) != 2:
            raise UsageError(
                f"{path} has no pair of text columns ({', '.join('/'.join(p) for p in PAIR_COLUMNS)}).",
                "Embeddings are measured on pairs of texts with a similarity.",
            )
        return [{names.TEXT_INPUT: column} for column in pair]
    tensors = [spec.name for spec in task.inputs if not spec.optional]
    if given and len(given) != len(tensors):
        raise UsageError(
            f"{task.task} reads {', '.join(tensors)}.", f"Give {len(tensors)} input columns in that order."
        )
    wanted: list[tuple[str, ...]] = [(name,) for name in given] or [INPUT_COLUMNS[tensor] for tensor in tensors]
    return [{tensor: _column(path, header, names_) for tensor, names_ in zip(tensors, wanted, strict=True)}]


def _value(tensor: str, text: str) -> str | list[str]:
    if tensor != names.CANDIDATE_LABELS:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text.split("|")
    return [str(label) for label in value] if isinstance(value, list) else [str(value)]


def _label(text: str, labels: list[str]) -> str:
    """A label's name; a number stands for a label where no label is called so."""
    return labels[int(text)] if text not in labels and text.isdigit() and int(text) < len(labels) else text
