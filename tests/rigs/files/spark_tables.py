"""Tables for Spark to score, and the answers of the classifier in this process to their texts."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from hfx.local.encoder import LocalModel

TEXTS = ["A wonderful day.", "It was bad.", "", "So-so, 謝謝.", "I do not like this film at all. " * 6]
NESTED = pa.struct([("n", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.float64()))])


def table(spark: SparkSession, rows: int, partitions: int = 3) -> DataFrame:
    """Return rows of an id and a text: the TEXTS and null in turn."""
    texts = [*TEXTS, None]
    return spark.createDataFrame(
        [(i, texts[i % len(texts)]) for i in range(rows)], "id int, text string"
    ).repartitionByRange(partitions, "id")


def rich_table(ids: range) -> pa.Table:
    """Return rows of many types; some texts are null."""
    texts = [*TEXTS, None]
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "text": pa.array([texts[i % len(texts)] for i in ids], pa.string()),
            "label": pa.array([bytes([i % 256, 0xFF]) for i in ids], pa.binary()),
            "price": pa.array([decimal.Decimal(i) / 4 for i in ids], pa.decimal128(20, 2)),
            "at": pa.array([1_700_000_000_000_007 + i for i in ids], pa.timestamp("us", "UTC")),
            "nested": pa.array([{"n": [i, None], "m": [("k", 0.1)]} for i in ids], NESTED),
        }
    )


def expected(repository: Path) -> dict[str | None, tuple[Any, ...]]:
    """Return the answers of the classifier in this process: text -> label, score, probabilities, error."""
    model = LocalModel.open(repository, "sentiment")
    answers: dict[str | None, tuple[Any, ...]] = {None: (None, None, None, "The column 'text' is null.")}
    for text in TEXTS:
        answer = model.infer({"text_input": text, "top_k": 3})
        probabilities = dict(zip(answer["label"], answer["score"], strict=True))
        answers[text] = answer["label"][0], answer["score"][0], probabilities, None
    return answers


def predicted(row: Row) -> tuple[Any, ...]:
    return row.predicted_label, row.score, row.probabilities, row.error


def python_workers() -> Iterator[psutil.Process]:
    """Yield the Python workers of this process's Spark, which are the children of its daemon."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in process.parent().cmdline():
                yield process
