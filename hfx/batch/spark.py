"""Predictions as columns of Spark DataFrames. Each Python worker keeps the model open between tasks.

Use `score` for tables; `udf` and `make_predict_fn` are for code that works with columns and UDFs. Only the DataFrame
API is used, so everything also runs under Spark Connect. The column `error` says why a row has no prediction. An
unreachable server fails the task, and Spark repeats the task.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from hfx import names
from hfx.answering import Model, Request
from hfx.batch import scoring
from hfx.batch.arrow import Kind, Scoring, arrow_types, score_batches
from hfx.batch.models import Place, Repository, Servers, describe, open_model
from hfx.batch.rows import check_columns, inputs_of
from hfx.batch.servers import Persistence
from hfx.errors import ModelChanged, RequestTimeout, ServerBusy, ServerUnreachable, UsageError
from hfx.metadata import check_values
from hfx.names import Task
from hfx.tasks import TASKS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Array = Any  # numpy.ndarray, of one column

KEPT = 2  # models that a Python worker keeps open, because tasks of several queries may alternate in it
AWAY, PAUSE_SECONDS = (ServerUnreachable, ServerBusy, RequestTimeout), 1.0
GPU, VISIBLE_GPUS = "gpu", "CUDA_VISIBLE_DEVICES"


class Options(TypedDict, total=False):
    """The location of a model, and the options of its requests.

    `repository` is a folder that every machine of the cluster can read; its models run on `device` in the Python
    workers. `url` is the address of a server, or a list of addresses. Requests carry `headers`, and a task fails when
    no server has answered for `patience` seconds. `settings` are inputs that are equal for all rows, such as
    `max_tokens`.
    """

    repository: str | Path
    device: Literal["cpu", "gpu"]
    url: str | Sequence[str]
    headers: Mapping[str, str]
    patience: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Scorer:
    """A model, and how its rows are scored. A Scorer is pickled and sent to the Python workers."""

    model: str
    place: Place
    persistence: Persistence
    scoring: Scoring

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score the batches of a partition; `mapInArrow` calls it."""
        with closing(score_batches(self.opened(), batches, self.scoring)) as scored:
            yield from scored

    def structs(self, arrays: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield the predictions of each row as one struct; `arrow_udf` calls it."""
        import pyarrow

        inputs = list(self.scoring.inputs.values())
        batches = (
            pyarrow.RecordBatch.from_arrays(list(each) if isinstance(each, tuple) else [each], names=inputs)
            for each in arrays
        )
        for batch in self.batches(batches):
            yield batch.select(batch.schema.names[len(inputs) :]).to_struct_array()

    def opened(self) -> Model:
        """Return the model, opened in this worker."""
        return open_in_worker(self.model, self.place, self.persistence)


@dataclass(frozen=True)
class PredictFunction:
    """The argument of `predict_batch_udf`. Spark calls it in a worker to obtain the function for a batch."""

    scorer: Scorer

    @property
    def return_type(self) -> StructType:
        """The `return_type` for `predict_batch_udf`: the fields of a prediction."""
        return _spark_schema(self.scorer.scoring, MAPLESS)

    def __call__(self) -> Callable[..., dict[str, Array]]:
        """Return the function for one batch, which takes an array of texts for each input of the model."""
        if len(self.scorer.scoring.inputs) > 1:  # Spark counts the function's parameters
            return lambda first, second: self._predict(first, second)
        return lambda texts: self._predict(texts)

    def _predict(self, *inputs: Array) -> dict[str, Array]:
        rows = zip(*(column.tolist() for column in inputs), strict=True)
        with closing(scoring.score(self.scorer.opened(), rows, self.scorer.scoring.request)) as scored:
            outcomes = [outcome for _, outcome in scored]
        predictions = [each for each in self.scorer.scoring.predictions() if each.kind in MAPLESS]
        return {each.name: _array([each.cell(outcome) for outcome in outcomes], each.kind) for each in predictions}


def score(
    df: DataFrame, *, model: str, column: str | Mapping[str, str] = "text", prefix: str = "", **options: Unpack[Options]
) -> DataFrame:
    """Return `df` with the predictions of `model` for its text `column` appended.

    For a model with several inputs, `column` is a mapping input -> column. `prefix` precedes the names of the new
    columns. Raises UsageError for columns that are missing, contain no text, or exist already; RepositoryError and
    ServerError.
    """
    scorer = _scorer(model, column, prefix, options)
    _check_columns(df, scorer.scoring)
    added = _spark_schema(scorer.scoring)
    from pyspark.sql.types import StructType

    return df.mapInArrow(scorer.batches, StructType([*df.schema.fields, *added.fields]))


def udf(*, model: str, **options: Unpack[Options]) -> Any:
    """Return a UDF from a text column (question answering: question and context) to a struct of predictions.

    Needs Spark 4.1. Raises UsageError, RepositoryError and ServerError.
    """
    try:
        from pyspark.sql.functions import ArrowUDFType, arrow_udf
    except ImportError:
        raise UsageError("This Spark has no arrow_udf, which came with 4.1.", "Use hfx.batch.spark.score.") from None
    scorer = _scorer(model, None, "", options)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # about type hints, which need pyarrow here
        made = arrow_udf(scorer.structs, _spark_schema(scorer.scoring), ArrowUDFType.SCALAR_ITER)
    # Else Spark may run the model once for each field that a query selects from the struct.
    return made.asNondeterministic()


def make_predict_fn(*, model: str, **options: Unpack[Options]) -> PredictFunction:
    """Return the argument `make_predict_fn` of `pyspark.ml.functions.predict_batch_udf`. It also has the `return_type`.

    A classifier's probabilities are left out, because such a UDF can't return maps. Raises UsageError, RepositoryError
    and ServerError.
    """
    return PredictFunction(_scorer(model, None, "", options))


def _scorer(model: str, column: str | Mapping[str, str] | None, prefix: str, options: Options) -> Scorer:
    task, metadata, place = describe(model, _place(options))
    settings: Request = {
        name: list(value) if isinstance(value, list | tuple) else [value]
        for name, value in options.get("settings", {}).items()
    }
    inputs = _inputs(task, column)
    check_columns(inputs, metadata, settings)
    check_values(metadata, settings)
    seed = settings.pop(names.SEED, [0])[0]
    if own := [name for name in inputs if name in settings and name in TASKS[task].row.texts]:
        raise UsageError(f"The settings hold {', '.join(own)}, which each row has.", "Leave it out of settings.")
    return Scorer(
        model, place, Persistence(options.get("patience", 300.0)), Scoring(task, inputs, settings, seed, prefix)
    )


def _inputs(task: Task, column: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return input tensor -> column. A UDF (None) has no column names, so it uses the names that error cells use."""
    if column is None:
        return {name: name.removesuffix("_input") for name in TASKS[task].row.texts}
    return inputs_of(task, [column] if isinstance(column, str) else [f"{name}={of}" for name, of in column.items()], {})


def _place(options: Options) -> Place:
    """Return the repository or the servers of `options`. Raises UsageError unless exactly one of them is given."""
    repository, url = options.get("repository"), options.get("url")
    if (repository is None) == (url is None):
        raise UsageError("A model is in a repository or behind servers.", "Give repository=FOLDER or url=ADDRESS.")
    if repository is not None:
        if "headers" in options:
            raise UsageError("headers are for servers.", "Leave headers out, or give url=ADDRESS.")
        return Repository(Path(repository).absolute(), options.get("device", "cpu"))
    if "device" in options:
        raise UsageError("A server runs its models where it was started to.", "Leave device out.")
    urls = (url,) if isinstance(url, str) else tuple(url or ())
    return Servers(urls, options={"headers": dict(options["headers"])} if "headers" in options else {})


def _placed(place: Place) -> Place:
    """Return `place` with the number of cores of this Spark task, and select the task's GPU.

    CUDA reads its environment variable once, so a worker stays on the GPU of its first task. An executor has as many
    workers as it runs tasks at a time, and the first tasks of the workers had different GPUs.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or isinstance(place, Servers):
        return place
    gpu = context.resources().get(GPU)
    if place.device == GPU and gpu and not _models:
        os.environ[VISIBLE_GPUS] = gpu.addresses[0]
    return replace(place, threads=context.cpus())


_models: dict[tuple[str, Place, Persistence], tuple[ExitStack, Model]] = {}


def open_in_worker(name: str, place: Place, persistence: Persistence) -> Model:
    """Return the model in this Python worker, opening it if necessary. At most KEPT models stay open.

    If too many are open, the least recently used model is closed. Waits up to `persistence.patience` for an unreachable
    server: failing at once would use up the attempts that Spark allows for a task.
    """
    place = _placed(place)
    key = name, place, persistence
    if key in _models:
        is_same = False
        with suppress(ModelChanged):
            is_same = _models[key][1].is_unchanged()
        if not is_same:
            _models.pop(key)[0].close()
    if key not in _models:
        while len(_models) >= KEPT:
            _models.pop(next(iter(_models)))[0].close()
        stack = ExitStack()
        _models[key] = stack, _patiently(lambda: stack.enter_context(open_model(*key)), persistence.patience)
    _models[key] = _models.pop(key)  # the most recently used model is last
    return _models[key][1]


def _patiently(open_it: Callable[[], Model], patience: float) -> Model:
    deadline = time.monotonic() + patience
    while True:
        try:
            return open_it()
        except AWAY:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def _check_columns(df: DataFrame, scoring: Scoring) -> None:
    from pyspark.sql.types import StringType

    present = {name.casefold() for name in df.columns}  # Spark ignores the case of column names
    for name, column in scoring.inputs.items():
        if df.columns.count(column) != 1:
            problem = "several columns" if column in df.columns else "no column"
            raise UsageError(f"The DataFrame has {problem} {column!r}.", f"It has {', '.join(df.columns)}.")
        is_text = name in TASKS[scoring.task].row.texts
        if is_text and not isinstance(kind := df.schema[column].dataType, StringType):
            raise UsageError(f"The column {column!r} is of type {kind.simpleString()}.", 'Use col.cast("string").')
    taken = [each.name for each in scoring.predictions() if each.name.casefold() in present]
    if taken:
        raise UsageError(
            f"The DataFrame already has {', '.join(taken)}.", 'Give prefix="predicted_", or drop or rename them.'
        )


MAPLESS: frozenset[Kind] = frozenset({"text", "json", "integer", "number", "numbers"})


def _spark_schema(scoring: Scoring, kinds: frozenset[Kind] | None = None) -> StructType:
    """Return the Spark types of the appended columns, or only of the columns of the `kinds`."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    types = arrow_types()
    predictions = [each for each in scoring.predictions() if kinds is None or each.kind in kinds]
    return StructType([StructField(each.name, from_arrow_type(types[each.kind])) for each in predictions])


def _array(cells: Sequence[Any], kind: Kind) -> Array:
    """Return a column's cells as numpy: "numbers" as float32 [rows, width] with NaN for None, other kinds as object."""
    import numpy as np

    if kind == "numbers":
        width = next((len(cell) for cell in cells if cell is not None), 0)
        return np.array([[np.nan] * width if cell is None else cell for cell in cells], np.float32)
    array = np.empty(len(cells), np.object_)
    array[:] = cells
    return array
