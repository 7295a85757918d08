"""The runner of a Spark cluster: each task scores consecutive chunks and writes their parts on storage that all share.

Spark only decides which worker scores which chunks. A task that fails is run again for the parts that it has not
written; a job that fails is resumed, by Spark or without it. Two tries of a task, of which speculation may run both,
write the same bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.answering import Model, Request
from hfx.batch.columns import labels_of
from hfx.batch.folder import Folder
from hfx.batch.job import JobModel, model_record, read_job
from hfx.batch.local import Progress, check_files, check_machine
from hfx.batch.options import RunOptions
from hfx.batch.plan import read_plan
from hfx.batch.publish import count
from hfx.batch.records import record_of
from hfx.batch.rows import probe
from hfx.batch.scored_parts import score_chunks
from hfx.batch.spark import open_in_worker
from hfx.batch.spark_session import first_line, spark_session
from hfx.batch.worker import described, reported
from hfx.errors import HfxError, ServerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_A_SLOT = 4  # so that slots end at about the same time; the window of rows runs across the chunks of a task
POLL_SECONDS = 0.5
OWN_ERRORS = "hfx.errors."  # as they stand in the traceback of a Python worker
MESSAGES = "message string"  # what a task gives: JSON


@dataclass(frozen=True)
class ModelTask:
    """Opens the model, so that what can't be opened is refused before the work, and describes it."""

    name: str
    options: RunOptions
    settings: Request
    probe: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of `mapInArrow`."""
        return _messages(self._described, batches)

    def opened(self) -> Model:
        """The model of this worker."""
        return open_in_worker(self.name, self.options.place(), self.options.persistence)

    def _described(self, ids: Sequence[int]) -> Mapping[str, Any]:
        model = self.opened()
        if self.probe:
            probe(model, self.settings)
        return {"model": asdict(model_record(model, labels_of(model, self.settings)))}


@dataclass(frozen=True)
class ChunkTask:
    """Scores those of `chunks` whose places in it are the ids of a partition."""

    model: ModelTask
    folder: Path
    chunks: Sequence[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of `mapInArrow`."""
        return _messages(self._scored, batches)

    def _scored(self, ids: Sequence[int]) -> Mapping[str, Any]:
        folder, options = Folder(self.folder), self.model.options
        folder.check_cancelled()
        job, planned = read_job(folder), read_plan(folder)
        check_machine(job, options)
        done = folder.done()
        missing = [planned[number] for number in (self.chunks[at] for at in ids) if number not in done]
        if not missing:
            return {}
        model = self.model.opened()
        check_files(model.sha256, job)
        for _ in score_chunks(folder, job, missing, model, at_once=options.max_concurrency):
            folder.check_cancelled()
        return {}


def _messages(
    work: Callable[[Sequence[int]], Mapping[str, Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What `work` gives for the ids of a partition, or the error that another try would not cure."""
    import pyarrow

    ids = [number for batch in batches for number in batch.column(0).to_pylist()]
    if not ids:
        return
    try:
        content = work(ids)
    except ServerError:
        raise
    except HfxError as error:
        content = {"error": described(error)}
    yield pyarrow.RecordBatch.from_pydict({"message": [json.dumps(content)]})


@dataclass(frozen=True)
class SparkRunner:
    """Scores chunks of jobs by Spark, with the interface of hfx.batch.local.Runner."""

    spark: SparkSession
    model: ModelTask

    @property
    def options(self) -> RunOptions:
        """The options of the run; its `workers`, if they are more than one, are the tasks at a time."""
        return self.model.options

    def open(self) -> JobModel:
        """The model, as a worker of the cluster has opened it. Raises HfxError."""
        return record_of(JobModel, self._collected(self.model, 1, 1, "")[0]["model"])

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`; returns when all of their parts are on the disk. Raises HfxError."""
        task = ChunkTask(self.model, folder.path.absolute(), tuple(chunks))
        tag = f"hfx-{uuid.uuid4()}"
        slots = self.options.workers if self.options.workers > 1 else _slots(self.spark)
        with ThreadPoolExecutor(1, "hfx-spark") as thread:
            tasks = min(len(chunks), TASKS_A_SLOT * slots)
            running = thread.submit(self._collected, task, len(chunks), tasks, tag)
            try:
                _watch(running, folder, chunks, on_event)
            finally:
                if not running.done():
                    with suppress(Exception):  # where Spark can't be reached, the tasks have ended, too
                        self.spark.interruptTag(tag)
        running.result()

    def _collected(self, task: ModelTask | ChunkTask, ids: int, tasks: int, tag: str) -> list[dict[str, Any]]:
        """The messages of tasks for so many ids. Raises the HfxError of the first that has one."""
        if tag:
            self.spark.addTag(tag)  # of the jobs that this thread starts
        try:
            rows = self.spark.range(0, ids, 1, tasks).mapInArrow(task, MESSAGES).collect()
        except Exception as error:  # PySparkException, and py4j's of Java
            raise _failed(error) from error
        messages = [json.loads(row[0]) for row in rows]
        for message in messages:
            if "error" in message:
                raise reported(message["error"])
        return messages


@contextmanager
def spark_runner(
    name: str, options: RunOptions, settings: Request, probe: bool = False, master: str = ""
) -> Iterator[SparkRunner]:
    """A SparkRunner of the model `name`; with `probe`, a worker first answers a short text with `settings`."""
    with spark_session(master) as spark:
        yield SparkRunner(spark, ModelTask(name, options, settings, probe))


def _watch(running: Future[Any], folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
    """Report the parts that appear until the tasks have ended. Raises JobCancelled, and what `on_event` raises."""
    job, planned = read_job(folder), read_plan(folder)
    left = set(chunks)
    while left:
        ended = bool(wait([running], POLL_SECONDS).done)
        folder.check_cancelled()
        for number in sorted(left & folder.done()):
            counts = count(folder, job, [planned[number]])
            left.discard(number)
            on_event({"event": "chunk", "number": number, "rows": counts.rows, "errors": counts.kinds})
        if ended:
            return


def _slots(spark: SparkSession) -> int:
    """How many tasks the cluster runs at a time, as the partitions show that Spark chooses; Connect has no context."""
    from pyspark.sql.functions import max as largest
    from pyspark.sql.functions import spark_partition_id

    row = spark.range(1 << 16).select(spark_partition_id().alias("partition")).agg(largest("partition")).head()
    return int(row[0]) + 1 if row else 1


def _failed(error: Exception) -> ServerError:
    """The failure of a job, by the line that says why a task failed the last time."""
    own = (line.strip() for line in str(error).splitlines() if line.startswith(OWN_ERRORS))
    reason = next(own, first_line(error)).removeprefix(OWN_ERRORS)
    return ServerError(
        f"Spark has given up: {reason}",
        "Nothing is lost: `hfx batch resume DIR` goes on, with --engine spark or on one machine.",
    )
