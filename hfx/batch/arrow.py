"""Scoring Arrow record batches. Their columns are kept, and typed columns with the predictions are appended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hfx import names
from hfx.answering import Answer, Model, Request
from hfx.batch import scoring
from hfx.batch.rows import ERROR, all_labels, fact_columns, own_settings, prediction_columns, row_seed
from hfx.errors import HfxError, ServerUnreachable, UsageError
from hfx.metadata import check_text
from hfx.names import Task
from hfx.tasks import TASKS
from hfx.tasks.task import CellKind

if TYPE_CHECKING:
    import pyarrow as pa

Kind = CellKind | Literal["numbers by label"]
Cells = tuple[Any, ...]

ROWS = 256  # the most rows of a yielded batch; a batch is yielded when its last row is answered
PREDICTED_LABEL = "predicted_label"
PROBABILITIES = "probabilities"


@dataclass(frozen=True)
class Prediction:
    """An appended column. `cell` returns the value of the column for a row, from the row's answer or error."""

    name: str
    kind: Kind
    cell: Callable[[scoring.Outcome], Any]


@dataclass(frozen=True)
class Scoring:
    """How batches are scored.

    `inputs` maps input tensors to text columns; `settings` are tensors equal for all requests.

    The seed of a row is derived from `seed` and the row's texts, because rows of a DataFrame have no numbers.
    """

    task: Task
    inputs: Mapping[str, str]
    settings: Request
    seed: int = 0
    prefix: str = ""

    def predictions(self) -> tuple[Prediction, ...]:
        """Return the appended columns: predictions, `error` (null for an answered row), and `fact_columns`."""
        facts = fact_columns(self.task)
        return (
            *_predictions(self.task, self.settings, self.prefix, self.inputs),
            Prediction(self.prefix + ERROR, "text", _error),
            *(_of_answer(self.prefix + fact.name, fact.kind, fact.cell) for fact in facts),
        )

    def request(self, cells: Cells) -> Request:
        """Return the request for a row. `cells` are in the order of `inputs`. Raises UsageError for a wrong cell."""
        given = dict(zip(self.inputs, cells, strict=True))
        read = {name: given.pop(name) for name in self.inputs if name in TASKS[self.task].row.texts}
        texts = {name: [_text(cell, self.inputs[name])] for name, cell in read.items()}
        seed = {names.SEED: [row_seed(self.seed, *read.values())]} if self.task in names.GENERATION_TASKS else {}
        return {**all_labels(self.task), **seed, **self.settings, **own_settings(given, self.inputs), **texts}


def score_batches(
    model: Model, batches: Iterable[pa.RecordBatch], plan: Scoring
) -> Generator[pa.RecordBatch, None, None]:
    """Yield `batches` with the predictions appended, in order, in batches of at most ROWS rows.

    Rows of several batches are in flight together. Raises errors that are not about one row, as `scoring.score` does,
    and ModelChanged if another model has answered.
    """
    predictions = plan.predictions()
    parts: deque[pa.RecordBatch] = deque()  # read, but not yet yielded

    def rows() -> Iterator[Cells]:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                part = batch.slice(start, ROWS)
                texts = [_cells(part.column(part.schema.get_field_index(name))) for name in plan.inputs.values()]
                parts.append(part)
                yield from zip(*texts, strict=True)

    outcomes: list[scoring.Outcome] = []
    with closing(scoring.score(model, rows(), plan.request)) as scored:
        for _, outcome in scored:
            outcomes.append(outcome)
            if len(outcomes) == parts[0].num_rows:
                if not model.is_unchanged():
                    raise ServerUnreachable("A server went away before it was sure which model it has.", "Try again.")
                yield _appended(parts.popleft(), outcomes, predictions)
                outcomes = []


def _predictions(task: Task, settings: Request, prefix: str, own: Collection[str]) -> Iterator[Prediction]:
    """Yield the columns of a task.

    A classifier's probabilities are one map, because labels may be invalid column names.
    """
    if not TASKS[task].has_all_labels:
        for column in prediction_columns(task, (), settings, prefix, own):
            yield _of_answer(column.name, column.kind, column.cell)
        return
    label = prefix + names.LABEL if prefix else PREDICTED_LABEL  # many tables already have a column `label`
    yield _of_answer(label, "text", lambda answer: answer[names.LABEL][0])
    yield _of_answer(prefix + names.SCORE, "number", lambda answer: answer[names.SCORE][0])
    yield _of_answer(prefix + PROBABILITIES, "numbers by label", _probabilities)


def _of_answer(name: str, kind: Kind, cell: Callable[[Answer], Any]) -> Prediction:
    return Prediction(name, kind, lambda outcome: None if isinstance(outcome, HfxError) else cell(outcome))


def _error(outcome: scoring.Outcome) -> str | None:
    return scoring.reason(outcome) if isinstance(outcome, HfxError) else None


def _probabilities(answer: Answer) -> list[tuple[str, float]]:
    return sorted(zip(answer[names.LABEL], answer[names.SCORE], strict=True))


def _cells(column: pa.Array) -> list[Any]:
    """Return the values of a text column as str, or as bytes if they are not valid UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        import pyarrow

        binary = pyarrow.large_binary() if pyarrow.types.is_large_string(column.type) else pyarrow.binary()
        values = [_decoded(value) for value in column.view(binary).to_pylist()]
    return values


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _text(cell: Any, column: str) -> str:
    if cell is None or cell != cell:  # pandas represents null by NaN
        raise UsageError(f"The column {column!r} is null.")
    if isinstance(cell, bytes):
        raise UsageError(f"The column {column!r} is not UTF-8.")
    return check_text(cell, f"column {column!r}")


def _appended(
    part: pa.RecordBatch, outcomes: Sequence[scoring.Outcome], predictions: Sequence[Prediction]
) -> pa.RecordBatch:
    import pyarrow

    types = arrow_types()
    kinds = [types[prediction.kind] for prediction in predictions]
    arrays = [
        pyarrow.array([prediction.cell(outcome) for outcome in outcomes], kind)
        for prediction, kind in zip(predictions, kinds, strict=True)
    ]
    fields = [pyarrow.field(prediction.name, kind) for prediction, kind in zip(predictions, kinds, strict=True)]
    schema = pyarrow.schema([*part.schema, *fields])
    return pyarrow.RecordBatch.from_arrays([*part.columns, *arrays], schema=schema)


def arrow_types() -> Mapping[Kind, pa.DataType]:
    """Return the Arrow type of each kind of column."""
    import pyarrow

    number = pyarrow.float32()
    return {
        "text": pyarrow.string(),
        "json": pyarrow.string(),
        "integer": pyarrow.int32(),
        "number": number,
        "numbers": pyarrow.list_(number),
        "numbers by label": pyarrow.map_(pyarrow.string(), number),
    }
