"""Making a request from an input row, and an output row from the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hfx import names
from hfx.answering import Answer, Model, Request
from hfx.batch.job import Job
from hfx.batch.scoring import reason
from hfx.errors import HfxError, UsageError
from hfx.metadata import INT32_MAX, ModelMetadata, check_text
from hfx.names import GENERATION_TASKS, Task
from hfx.python_backends.engine.generation_settings import SETTINGS
from hfx.rows import Row
from hfx.tasks import TASKS, kind_of
from hfx.tasks.kinds import VECTORS_OF_TOKENS
from hfx.tasks.task import CellKind, Column, as_float32, compact, json_output, output
from hfx.tasks.values import KINDS, values_of

ROW = "row"
ERROR = "error"
SCORES = "scores"
TOKEN = ("id", "text", "logprob", "special")


def prediction_columns(
    task: Task, labels: Sequence[str], settings: Request, prefix: str = "", own: Collection[str] = ()
) -> tuple[Column, ...]:
    """Return the columns of a task's predictions. `labels` are a classifier's; `prefix` precedes the columns' names.

    `settings` are the tensors that all requests share; they can request log-probabilities, tokens and several answers.
    `own` are the names of the tensors that each row provides. If each row provides its labels, no label has a column.
    """
    has_own_labels = TASKS[task].has_all_labels and names.CANDIDATE_LABELS in own
    columns = TASKS[task].columns(() if has_own_labels else labels)
    if task is Task.QUESTION_ANSWERING and names.TOP_K in {*settings, *own}:
        columns = (*columns, json_output(names.ANSWERS))
    if has_own_labels:
        by_label = Column(
            SCORES, "json", lambda answer: compact(dict(zip(answer[names.LABEL], answer[names.SCORE], strict=True)))
        )
        columns = (*columns, by_label)
    if task in GENERATION_TASKS and settings.get(names.RETURN_LOG_PROBS) == [True]:
        columns = (*columns, Column(names.OUTPUT_LOG_PROBS, "numbers", lambda answer: answer[names.OUTPUT_LOG_PROBS]))
    if task in GENERATION_TASKS and names.LOGPROBS in settings:
        columns = (*columns, _tokens_column(names.TOKEN_TABLES, "tokens"))
    if task in GENERATION_TASKS and names.PROMPT_LOGPROBS in settings:
        columns = (*columns, _tokens_column(names.PROMPT_TOKEN_TABLES, "prompt_tokens"))
    return tuple(replace(column, name=prefix + column.name) for column in columns)


def fact_columns(task: Task) -> tuple[Column, ...]:
    """Return the columns after `error`: the number of truncated tokens, and for a generator the finish reason."""
    truncated = output(names.TRUNCATED_TOKENS, "integer")
    return (truncated, output(names.FINISH_REASON, "text")) if task in GENERATION_TASKS else (truncated,)


def labels_of(model: Model, settings: Request) -> tuple[str, ...]:
    """Return the sorted labels of a classifier, from its answer to a short text. Empty for other tasks.

    They are also empty for a zero-shot job whose rows have their own labels.

    Raises UsageError for equal labels, and for a model with several scores or vectors per row, for which the output has
    no columns: a cross-encoder with several labels, or an embedder of tokens.
    """
    kind = kind_of(model.metadata, model.task)
    if kind in VECTORS_OF_TOKENS:
        raise UsageError(
            "The model has a vector for each token, and the output has one vector a row.",
            "Embed by embed_tokens() of hfx.client.",
        )
    if kind is names.Kind.PAIR_CLASSIFIER:
        raise UsageError(
            "The model has scores of several labels for a pair, and the output has one score a row.",
            "Score pairs by predict() of hfx.client.",
        )
    if not TASKS[model.task].has_all_labels or not {*TASKS[model.task].row.required} <= settings.keys():
        return ()
    request = {names.TEXT_INPUT: [TASKS[model.task].probe], **all_labels(model.task), **settings}
    labels: list[str] = model.answer(request)[names.LABEL]
    if len(set(labels)) < len(labels):
        raise UsageError("Two classes of this model have the same label.", "Give them different names in id2label.")
    return tuple(sorted(labels))


def all_labels(task: Task) -> Request:
    """Return the setting that makes a classifier return all of its labels. Empty for other tasks."""
    return {names.TOP_K: [INT32_MAX]} if TASKS[task].has_all_labels else {}


def as_float32s(values: Sequence[float]) -> list[float]:
    """Apply `as_float32` to each value, vectorized. numpy's own text of a float32 takes four times as long.

    A decimal of up to nine digits is an integer divided by a power of ten. Both are exact as doubles (up to 1e22), so
    the quotient is the double with that text.
    """
    import numpy as np

    floats = np.array(values, np.float32)
    shortest, size = floats.astype(np.float64), np.abs(floats)
    fits = (size >= 1e-13) & (size < 1e5)
    exponents = np.floor(np.log10(np.where(fits, size, 1), dtype=np.float64)).astype(np.int64)
    powers = np.array([float(f"1e{exponent}") for exponent in range(23)])
    for digits in (9, 8, 7, 6):  # nine digits always suffice; six digits cover all shorter texts
        scale = powers[digits - 1 - exponents]
        rounded = np.rint(floats * scale) / scale
        shortest = np.where(fits & (rounded.astype(np.float32) == floats), rounded, shortest)
    found: list[float] = shortest.tolist()
    for at in np.flatnonzero(~fits):
        found[at] = as_float32(floats[at])
    return found


def _tokens_column(tables: Sequence[str], name: str) -> Column:
    """Return the column of the tokens in `tables` (names.TOKEN_TABLES), each with its alternatives as `top`."""
    return Column(name, "json", lambda answer: compact(_tokens([answer[table] for table in tables])))


def _tokens(tables: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    rows = [
        [dict(zip(TOKEN, each, strict=True)) for each in zip(*row, strict=True)] for row in zip(*tables, strict=True)
    ]
    return [{**token, "top": [each for each in top if each["id"] >= 0]} for token, *top in rows]


SEEDS = 2**63


class NumberedRow(NamedTuple):
    """An input row, its number over the whole job (from 1), and the number of its chunk."""

    chunk: int
    number: int
    row: Row


@dataclass(frozen=True)
class Layout:
    """The columns of the output: row number, `kept` input columns, `predictions`, the error, and `facts`."""

    kept: tuple[str, ...]
    predictions: tuple[Column, ...]
    facts: tuple[Column, ...]

    @property
    def columns(self) -> dict[str, CellKind]:
        """Name -> kind of each column."""
        kept: dict[str, CellKind] = dict.fromkeys(self.kept, "any")
        predictions, facts = ({each.name: each.kind for each in own} for own in (self.predictions, self.facts))
        return {ROW: "integer", **kept, **predictions, ERROR: "text", **facts}

    def cells(self, scored: Sequence[tuple[NumberedRow, Answer | HfxError]]) -> list[list[Any]]:
        """Return the output cells of scored rows, column by column."""
        errors = [reason(outcome) if isinstance(outcome, HfxError) else None for _, outcome in scored]
        answers = [None if isinstance(outcome, HfxError) else outcome for _, outcome in scored]

        def cells_of(column: Column) -> list[Any]:
            return [None if answer is None else column.cell(answer) for answer in answers]

        kept = [[item.row.cells.get(name) for item, _ in scored] for name in self.kept]
        numbers = [item.number for item, _ in scored]
        return [numbers, *kept, *map(cells_of, self.predictions), errors, *map(cells_of, self.facts)]


def layout_of(job: Job) -> Layout:
    """Return the columns of a job's output. Raises UsageError if a kept column has the same name as another column."""
    task = Task(job.model.task)
    layout = Layout(
        job.output.keep,
        prediction_columns(task, job.model.labels, job.settings, job.output.prefix, job.columns),
        fact_columns(task),
    )
    own = [ROW, *(column.name for column in layout.predictions), ERROR, *(column.name for column in layout.facts)]
    twice = [name for name in own if name in layout.kept]
    if twice:
        fix = "Give --output-prefix predicted_, or leave the column out of --keep-columns."
        if twice[0] not in {column.name for column in layout.predictions}:
            fix = "Leave the column out of --keep-columns."
        raise UsageError(f"The input has a column {twice[0]!r}, and so has the output.", fix)
    return layout


class Requests:
    """Makes the request for each row. `columns` maps input tensors to columns. A row's settings override the job's."""

    def __init__(self, columns: Mapping[str, str], settings: Request, task: Task, seed: int) -> None:
        self._texts = {name: column for name, column in columns.items() if name in TASKS[task].row.texts}
        self._own = {name: column for name, column in columns.items() if name not in self._texts}
        self._settings = {**all_labels(task), **settings}
        self._seed = seed if task in GENERATION_TASKS else None

    @classmethod
    def of(cls, job: Job) -> Requests:
        """Create the Requests for the rows of `job`."""
        return cls(job.columns, job.settings, Task(job.model.task), job.seed)

    def __call__(self, item: NumberedRow) -> Request:
        """Return the tensors for a row. Raises the RowError of an unreadable row, and UsageError for a wrong cell."""
        if item.row.error is not None:
            raise item.row.error
        row = item.row
        texts = {name: [self._text(row, column)] for name, column in self._texts.items()}
        seed = {} if self._seed is None else {names.SEED: [row_seed(self._seed, item.number)]}
        cells = {name: row.cells.get(column) for name, column in self._own.items()}
        return {**seed, **self._settings, **own_settings(cells, self._own, row.textual), **texts}

    def _text(self, row: Row, column: str) -> str:
        value = row.cells.get(column)
        if value is None:
            raise UsageError(f"The column {column!r} is null." if column in row.cells else f"There is no {column!r}.")
        if value == "" and row.textual:
            raise UsageError(f"The column {column!r} is empty.")
        if not isinstance(value, str):
            raise UsageError(f"The column {column!r} is of type {type(value).__name__}, not a text.")
        return check_text(value, f"column {column!r}")


def own_settings(cells: Mapping[str, Any], columns: Mapping[str, str], textual: bool = False) -> Request:
    """Return the settings of a row from its `cells` (input tensor -> value) in `columns`. Empty cells are left out.

    Raises UsageError.
    """
    settings: Request = {}
    for name, value in cells.items():
        if value is None or value != value or (textual and value == ""):  # pandas represents null by NaN
            continue
        if isinstance(value, float) and value.is_integer() and KINDS.get(name) == "integer":
            value = int(value)  # in a column with nulls, pandas writes integers as floats
        try:
            settings[name] = [*values_of(name, value, textual)]
        except UsageError as error:
            raise error.with_message(f"Column {columns[name]!r}: {error.message}") from None
    return settings


def row_seed(seed: int, *row: int | str) -> int:
    """Return the seed of a row: the first 8 bytes of the SHA-256 of "SEED:ROW", modulo 2^63.

    `row` is the row's number or its texts.
    """
    digest = hashlib.sha256(":".join(map(str, (seed, *row))).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS


def inputs_of(task: Task, columns: Sequence[str], settings: Request) -> dict[str, str]:
    """Return input tensor -> column, from values of --column ([INPUT=]COLUMN). Inputs in `settings` need no column.

    Raises UsageError for two columns of one input, for an input without a column, and for a setting that decides which
    columns the output has.
    """
    row = TASKS[task].row
    needed = [name for name in row.texts if name not in settings]
    own = {*row.settings, *(SETTINGS if task in GENERATION_TASKS else ())}
    chosen: dict[str, str] = {}
    for text in columns:
        name, equals, column = text.partition("=")
        tensor, column = (name, column) if equals and name in {*needed, *own} else (needed[0], text)
        if tensor in names.LOG_PROBS or (tensor == names.TOP_K and TASKS[task].has_all_labels):
            raise UsageError(f"{tensor} decides the columns of the output: it is equal for all rows.", "Leave it out.")
        if tensor in chosen:
            fix = f"This task takes {', '.join(needed)}; settings of each row are {', '.join(sorted(own)) or 'none'}."
            raise UsageError(f"There are two columns for {tensor}.", fix)
        chosen[tensor] = column
    missing = [tensor for tensor in needed if tensor not in chosen]
    if missing:
        raise UsageError(f"No column is given for {missing[0]}.", f"Give --column {missing[0]}=COLUMN.")
    return chosen


def check_settings(task: Task, settings: Request) -> None:
    """Raise UsageError for --top-k, which contradicts one column per label."""
    if names.TOP_K in settings and TASKS[task].has_all_labels:
        raise UsageError("The output has a column for each label.", "Leave --top-k out.")


def check_columns(columns: Mapping[str, str], model: ModelMetadata, settings: Collection[str] = ()) -> None:
    """Raise UsageError if a column is for an input that the model does not have, or if the model's labels are missing.

    `settings` are the inputs that all rows share.
    """
    for name, column in columns.items():
        if name not in model.input_types:
            message = f"The model {model.name!r} has no input {name}, for which the column {column!r} is given."
            raise UsageError(message, f"Leave it out; the model takes {', '.join(model.input_types)}.")
    if model.needs_labels and names.CANDIDATE_LABELS not in {*settings, *columns}:
        fix = "Give --labels sports,food (the setting candidate_labels), or --column candidate_labels=COLUMN."
        raise UsageError(f"The model {model.name!r} needs labels.", fix)


def example(model: Model, more: str = "") -> Request:
    """Return a request with all inputs that the model needs; each of its texts is short, and ends with `more`."""
    task, inputs = TASKS[model.task], model.metadata.input_types
    return {name: [task.probe + more] if name in task.row.texts else ["a", "b"] for name in task.row.needed_by(inputs)}


def probe(model: Model, settings: Request) -> None:
    """Answer a short text, so that wrong settings cause an error before any row is scored. Raises HfxError."""
    request, least = example(model), {}
    if model.task in GENERATION_TASKS:
        least = {
            names.MAX_TOKENS: [min(settings.get(names.MAX_TOKENS, [1])[0], settings.get(names.MIN_TOKENS, [1])[0])]
        }
    model.answer({**request, **all_labels(model.task), **settings, **least})
