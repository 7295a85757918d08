"""Read labelled data from the user's table: requests of a task, and the right answers.

Columns are found by their usual names unless they are given. A target that no answer of the model can equal is refused
with its line, as the metric would say nothing about the model.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.encoder.kinds.kind import Answer, Config, EncoderKind, Request
from hfx.exporter.generation.tasks import GenerationTask
from hfx.exporter.ranking import NDCG, ndcg
from hfx.metadata import shown
from hfx.python_backends.tasks.token_classification import IGNORED
from hfx.rows import Row, RowError, read_rows

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
RELEVANCE = "relevance"  # a file with this column has texts to be ranked for queries
PROMPTED: tuple[Request, Request] = ({names.PROMPT_NAME: "query"}, {names.PROMPT_NAME: "document"})
TEXT_COLUMNS = ("target", "summary", "text_output", "output", "answer")
MOST_SHOWN = 10  # a message lists at most this many labels


@dataclass(frozen=True)
class LabelledData:
    """Requests and targets. Embeddings have two requests for each target: the texts of a pair, in turn.

    If texts are ranked for queries, the targets are their relevances, and `queries` has the number of each one's query.
    """

    requests: tuple[Request, ...]
    targets: tuple[str, ...]
    queries: tuple[int, ...] = ()

    def measured(self, kind: EncoderKind, answers: Sequence[Answer]) -> float:
        """Return the metric of a task's answers: nDCG@10 if texts are ranked for queries, else the task's own."""
        if not self.queries:
            return kind.metric(answers, self.targets)
        return ndcg(kind.pair_scores(answers), [float(target) for target in self.targets], self.queries)

    def metric(self, kind: EncoderKind) -> str:
        """Return the name of the metric that `measured` returns."""
        return NDCG if self.queries else kind.metric_name


def read_data(
    path: Path,
    kind: EncoderKind | GenerationTask,
    config: Config,
    input_columns: Sequence[str] = (),
    target_column: str | None = None,
) -> LabelledData:
    """Return the rows of `path` for `kind`.

    `input_columns` are in the order of the task's inputs (question, context) or of a pair's texts.
    Raises UsageError, which names the file, the line or column, and what was found.
    """
    rows = _rows(path)
    header = list(rows[0].cells)
    if isinstance(kind, EncoderKind) and kind.ranks and RELEVANCE in header and target_column in (None, RELEVANCE):
        return _ranked(path, kind, rows, input_columns)
    usual = TEXT_COLUMNS if kind.task in names.GENERATION_TASKS else TARGET_COLUMNS
    target = _column(path, header, (target_column,) if target_column else usual)
    columns = _input_columns(path, header, kind, input_columns)
    requests: list[Request] = [
        {tensor: _value(tensor, row.cells[column]) for tensor, column in request.items()}
        for row in rows
        for request in columns
    ]
    targets = [str(row.cells[target]) for row in rows]
    if isinstance(kind, EncoderKind):
        targets = _targets(path, rows, target, kind, config, requests)
    return LabelledData(tuple(requests), tuple(targets))


def _ranked(path: Path, kind: EncoderKind | GenerationTask, rows: Sequence[Row], given: Sequence[str]) -> LabelledData:
    """Return texts and their relevances for queries; an embedder gets the two with the prompts of their roles."""
    header = list(rows[0].cells)
    if given and len(given) != 2:
        raise UsageError("Texts that are ranked have two input columns.", "Give those of the query and of the text.")
    query, text = (
        _column(path, header, (column,) if column else INPUT_COLUMNS[tensor])
        for tensor, column in zip((names.QUERY, names.TEXT_INPUT), given or (None, None), strict=True)
    )
    for row in rows:
        _check_number(path, row, RELEVANCE, least=0)
    cells = [row.cells for row in rows]
    targets = [str(row[RELEVANCE]) for row in cells]
    if not any(float(target) for target in targets):
        raise UsageError(f"No text in {path} is relevant.", "The column relevance needs numbers above 0.")
    numbers: dict[str, int] = {}
    queries = tuple(numbers.setdefault(row[query], len(numbers)) for row in cells)
    if kind.task is names.Task.TEXT_RANKING:
        pairs: list[Request] = [{names.QUERY: row[query], names.TEXT_INPUT: row[text]} for row in cells]
        return LabelledData(tuple(pairs), tuple(targets), queries)
    has_prompts = isinstance(kind, EncoderKind) and names.PROMPT_NAME not in kind.omitted
    prompts: tuple[Request, Request] = PROMPTED if has_prompts else ({}, {})
    requests = [
        {names.TEXT_INPUT: row[column], **prompt}
        for row in cells
        for column, prompt in zip((query, text), prompts, strict=True)
    ]
    return LabelledData(tuple(requests), tuple(targets), queries)


def _check_number(path: Path, row: Row, column: str, least: float = -math.inf) -> None:
    cell = str(row.cells[column])
    try:
        if math.isfinite(value := float(cell)) and value >= least:
            return
    except ValueError:
        pass
    kind = "a number from 0 on" if least == 0 else "a number"
    raise RowError(path, f"{shown(cell)} is not {kind}.", f"Write {kind}, or give another column.", row.place, column)


# Targets of encoders


def _targets(
    path: Path, rows: Sequence[Row], column: str, kind: EncoderKind, config: Config, requests: Sequence[Request]
) -> list[str]:
    """Return the targets of `rows` as the metric of `kind` reads them.

    Raises RowError for the first target that no answer can equal.
    """
    targets = [str(row.cells[column]) for row in rows]
    if kind.ranks:
        for row in rows:
            _check_number(path, row, column)
    elif names.CANDIDATE_LABELS in requests[0]:
        for row, target, request in zip(rows, targets, requests, strict=True):
            labels = _entities(path, row, column) if kind.task is names.Task.TOKEN_CLASSIFICATION else [target]
            _check_labels(path, [row], column, [labels], request[names.CANDIDATE_LABELS], "the row's candidates are")
    elif kind.task is names.Task.TOKEN_CLASSIFICATION:
        entities = [_entities(path, row, column) for row in rows]
        _check_labels(path, rows, column, entities, _kinds(_labels(kind, config)))
    elif kind.task in (names.Task.TEXT_CLASSIFICATION, names.Task.TEXT_RANKING):
        labels = _labels(kind, config)
        targets = [_label(target, labels) for target in targets]
        _check_labels(path, rows, column, [[target] for target in targets], labels)
    return targets


def _labels(kind: EncoderKind, config: Config) -> list[str]:
    return list(kind.last_step_settings(config)["labels"])


def _kinds(labels: Sequence[str]) -> list[str]:
    """Return the names of entities: the labels of tokens, with and without the prefixes of first and inner tokens."""
    kinds = [label[2:] if label.startswith(("B-", "I-")) else label for label in labels]
    return [kind for kind in dict.fromkeys([*kinds, *labels]) if kind != IGNORED]


def _entities(path: Path, row: Row, column: str) -> list[str]:
    """Return the labels of a row's entities. Raises RowError."""
    try:
        listed = json.loads(row.cells[column])
        for entity in listed:
            if not all(type(entity[place]) is int for place in (names.START, names.END)):
                raise TypeError
        return [str(entity["entity"]) for entity in listed]
    except (ValueError, TypeError, KeyError, RecursionError):
        reason = f"{shown(row.cells[column])} is not a JSON list of entities."
        fix = 'Write the entities as [{"entity": "PER", "start": 0, "end": 4}], or [] where a text has none.'
        raise RowError(path, reason, fix, row.place, column) from None


def _check_labels(
    path: Path,
    rows: Sequence[Row],
    column: str,
    targets: Sequence[Sequence[str]],
    known: Sequence[str],
    answerer: str = "the model's are",
) -> None:
    """Raise RowError for the first row with a label that is not `known`; `targets` are the labels of each row."""
    answered = frozenset(known)
    for row, labels in zip(rows, targets, strict=True):
        for foreign in (label for label in labels if label not in answered):
            named = _listed(list(dict.fromkeys(itertools.chain(*targets))))
            reason = f"no answer can be {shown(foreign)}: the file's labels are {named}; {answerer} {_listed(known)}."
            fix = "Rename the file's labels to these, or leave such rows out."
            raise RowError(path, reason, fix, row.place, column)


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - MOST_SHOWN} more" if len(labels) > MOST_SHOWN else ""
    return ", ".join(map(shown, labels[:MOST_SHOWN])) + more


# Rows and columns


def _rows(path: Path) -> list[Row]:
    rows = list(itertools.islice(read_rows(path).rows, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise RowError(path, f"it has over {MOST_ROWS} rows.", "Take a sample of it.")
    if not rows:
        raise RowError(path, "it has no rows.", "It needs a header and at least one row.")
    return [row._replace(cells={name: _text(cell) for name, cell in row.cells.items()}) for row in rows]


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
    path: Path, header: list[str], kind: EncoderKind | GenerationTask, given: Sequence[str]
) -> list[dict[str, str]]:
    """Return a dict of tensor name -> column for each request that a row makes."""
    if kind.task is names.Task.FEATURE_EXTRACTION:
        pair = next((p for p in ((tuple(given),) if given else PAIR_COLUMNS) if set(p) <= set(header)), None)
        if pair is None or len(pair) != 2:
            raise UsageError(
                f"{path} has no pair of text columns ({', '.join('/'.join(p) for p in PAIR_COLUMNS)}).",
                "Embeddings are measured on pairs of texts with a similarity.",
            )
        return [{names.TEXT_INPUT: column} for column in pair]
    tensors = [spec.name for spec in kind.inputs if not spec.optional]
    if given and len(given) != len(tensors):
        raise UsageError(
            f"{kind.task} reads {', '.join(tensors)}.", f"Give {len(tensors)} input columns in that order."
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
    """Return the name of a label given by its name, or by its number if no label has this number as its name."""
    is_number = text not in labels and re.fullmatch("[0-9]{1,9}", text) is not None
    return labels[int(text)] if is_number and int(text) < len(labels) else text
