"""`hfx.batch.spark` beside a UDF of torch on the same workers, and beside a job on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.batch_ways import COLUMN, Jobs, Rows, write_rows
from bench.cases import Served
from bench.command import Settings
from bench.exports import NAME
from bench.figures import Figures, Goal, take_turns
from bench.peers import THREADS
from hfx.batch.spark import score
from hfx.batch.spark_runner import spark_session

if TYPE_CHECKING:
    import pandas as pd

JOB, SPARK, TORCH = "hfx batch", "hfx.batch.spark", "torch in a pandas UDF"
SHAPE, ROWS = Served("distilbert-base"), Rows("512 rows", 512, "lognormal:25,1.0,200", 128)
BATCH = 8
GOALS = (
    Goal(ROWS.name, "rows/s", (SPARK,), least=4.0, against=(TORCH,)),
    Goal(ROWS.name, "rows/s", (SPARK,), least=0.85, against=(JOB,)),
)


def spark(settings: Settings, figures: Figures) -> None:
    """A task for each core, with one thread each, after a run that opens the models."""
    repository = SHAPE.repository("int8", settings.quick)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfx-bench-")))
        source = write_rows(folder / "rows.csv", ROWS.texts)
        jobs = stack.enter_context(Jobs.of(repository, {}))
        session = stack.enter_context(spark_session(f"local[{THREADS}]"))
        frame = _written(session, folder / "all.parquet", ROWS.texts)
        few = _written(session, folder / "few.parquet", ROWS.texts[: ROWS.first])
        udf = _torch_udf(str(SHAPE.checkpoint(settings.quick)))
        ways: dict[str, Callable[[Rows], dict[str, float | None]]] = {
            JOB: lambda rows: jobs.run(source),
            SPARK: partial(_run, score(frame, model=NAME, repository=repository), ROWS.count),
            TORCH: partial(_run, few.withColumn("label", udf(COLUMN)), ROWS.first),
        }
        for way in ways.values():
            way(ROWS)
        take_turns(figures, "Spark", {ROWS.name: ROWS}, ways, settings.turns(3))


def _written(session: Any, path: Path, texts: tuple[str, ...]) -> Any:
    rows = [(text,) for text in texts]
    session.createDataFrame(rows, f"{COLUMN} string").repartition(THREADS).write.parquet(str(path))
    return session.read.option("spark.sql.files.openCostInBytes", 0).parquet(str(path))


def _run(frame: Any, count: int, rows: Rows) -> dict[str, float | None]:
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begin
    return {"rows/s": count / seconds, "seconds": seconds}


def _torch_udf(checkpoint: str) -> Any:
    """The usual recipe: a pipeline that is opened once for each task, with one thread."""
    from pyspark.sql.functions import pandas_udf

    def labels(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import pandas
        import torch
        from transformers import pipeline

        torch.set_num_threads(1)
        classify: Any = pipeline("text-classification", model=checkpoint, device=torch.device("cpu"))
        for texts in batches:
            answers = classify(texts.tolist(), batch_size=BATCH, truncation=True)
            yield pandas.Series([answer["label"] for answer in answers])

    labels.__annotations__ = {"batches": Iterator[_series()], "return": Iterator[_series()]}
    return pandas_udf(labels, "string")


def _series() -> Any:
    import pandas

    return pandas.Series
