"""Every row gets a result, in order and with the same bytes, however the work is divided or interrupted."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfx.batch.options import Threshold
from hfx.batch.publish import publish
from hfx.batch.rows import row_seed
from hfx.batch.scored_parts import score_chunks
from hfx.errors import UsageError
from tests.rigs.files.batch_jobs import Opened, csv_text, output_rows, table, texts

SIZES = (1, 4, 64)
CELLS = st.text(st.sampled_from('ab ,"\t\r\n\ufeffé€😀\x85\u2028\0'), max_size=12)
COLUMNS = ("id", "text")


@pytest.fixture
def folders(memory: Path) -> Iterator[Path]:
    """New folders, one after the other."""
    return (Path(tempfile.mkdtemp(dir=memory)) for _ in count())


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=9),
    ragged=st.sets(st.integers(0, 8), max_size=2),
    mark=st.sampled_from(["", "\ufeff"]),
    ending=st.sampled_from([".csv", ".jsonl", ".parquet"]),
    chance=st.randoms(use_true_random=False),
)
def test_every_row_is_answered_in_its_place_however_the_work_is_done(
    rows: list[tuple[str, str]],
    ragged: set[int],
    mark: str,
    ending: str,
    chance: random.Random,
    folders: Iterator[Path],
    classifier: Opened,
) -> None:
    lines = [csv_text([(*row, "one too many") if at in ragged else row]) for at, row in enumerate(rows)]
    source = next(folders) / "rows.csv"
    source.write_bytes((mark + csv_text([COLUMNS]) + "".join(lines)).encode())
    outputs = set()
    for size in SIZES:
        folder = next(folders)
        options: Any = {"size": size, "file_name": f"out{ending}", "keep_columns": "all"}
        planned = classifier.plan(folder, [source], **options)
        left = [*range(len(planned.chunks))]
        while left:  # some chunks, then a crash, then others: together, one row at a time, few at a time
            some = sorted(chance.sample(left, chance.randint(1, len(left))))
            way: dict[str, Any] = chance.choice([{}, {"alone": True}, {"at_once": chance.randint(1, 5)}])
            classifier.score(planned, some, **way)
            left = [each for each in left if each not in some or chance.random() < 0.1]
        publish(planned, Threshold(-1))
        outputs.add((folder / planned.job.output.file_name).read_bytes())
    assert len(outputs) == 1
    found = output_rows(folder / planned.job.output.file_name)
    assert [int(row["row"]) for row in found] == [*range(1, len(rows) + 1)]
    for at, (row, (id_, text)) in enumerate(zip(found, rows, strict=True)):
        if at in ragged or "\0" in id_ + text:
            assert row["error"] and not row["label"]
        else:
            assert (row["id"] or "", row["text"] or "") == (id_, text)
            assert (row["error"] or "") == ("" if text else "The column 'text' is empty.")
            assert bool(row["label"]) == bool(text)


def test_csv_json_and_parquet_outputs_hold_the_same_values(classifier: Opened, tmp_path: Path) -> None:
    source = table(
        tmp_path / "a.csv", [{"id": "007", "text": "Lovely."}, {"id": "", "text": ""}, {"id": "é,\r", "text": "\x00"}]
    )
    found = []
    for ending in (".csv", ".jsonl", ".parquet"):
        folder = tmp_path / f"as{ending}"
        classifier.run(folder, [source], file_name=f"out{ending}", keep_columns="id,text", prefix="predicted_")
        rows = output_rows(folder / f"out{ending}")
        found.append([{name: str(value) for name, value in row.items() if value not in (None, "")} for row in rows])
    assert found[0] == found[1]
    for text, typed in zip(found[0], found[2], strict=True):
        assert text.keys() == typed.keys()
        for name, value in text.items():
            number = "score" in name or "probability" in name
            assert typed[name] == value or (number and np.float32(typed[name]) == np.float32(value)), name


def test_parquet_keeps_the_types_of_its_columns(classifier: Opened, tmp_path: Path) -> None:
    columns = {"id": [7, None], "when": [datetime(2026, 1, 2), None], "tags": [["a"], []], "text": ["Lovely.", None]}
    written = pa.table(columns)
    pyarrow.parquet.write_table(written, tmp_path / "a.parquet")
    classifier.run(tmp_path / "job", [tmp_path / "a.parquet"], file_name="out.parquet", keep_columns="all")
    found = pyarrow.parquet.read_table(tmp_path / "job" / "out.parquet")
    assert found.select(list(columns)).equals(written)
    assert found["error"].to_pylist() == [None, "The column 'text' is null."]
    for ending in (".csv", ".jsonl"):
        classifier.run(tmp_path / ending, [tmp_path / "a.parquet"], file_name=f"out{ending}", keep_columns="id,tags")
        first = output_rows(tmp_path / ending / f"out{ending}")[0]
        assert (first["id"], first["tags"]) in [("7", '["a"]'), (7, ["a"])]


def test_sampled_rows_depend_on_the_seed_and_their_number_alone(generator: Opened, tmp_path: Path) -> None:
    source = texts(tmp_path / "a.csv", 9)
    options: Any = {"settings": {"do_sample": [True], "max_tokens": [6], "temperature": [1.5]}}
    whole = generator.run(tmp_path / "whole", [source], seed=5, size=64, **options)
    assert generator.run(tmp_path / "other", [source], seed=6, size=64, **options) != whole
    planned = generator.plan(tmp_path / "parts", [source], seed=5, size=2, **options)
    generator.score(planned, range(len(planned.chunks))[::-1], at_once=1)
    publish(planned, Threshold(-1))
    assert (tmp_path / "parts" / "predictions.csv").read_bytes() == whole
    same = table(tmp_path / "b.csv", [{"text": "The garden"}] * 4)
    generator.run(tmp_path / "same", [same], seed=5, **options)
    assert len({row["generated_text"] for row in output_rows(tmp_path / "same" / "predictions.csv")}) > 1
    assert len({row_seed(5, number) for number in range(1000)} | {row_seed(6, 1)}) == 1001


def test_text_and_gzip_and_several_files_are_one_table(classifier: Opened, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Lovely.\n\nAwful.")
    with gzip.open(tmp_path / "in" / "b.jsonl.gz", "wt") as file:
        file.write('{"text": "Lovely."}\n\n{"other": 1}\n{"text": 5}\n')
    table(tmp_path / "in" / "c.csv", [])
    (tmp_path / "in" / "_SUCCESS").touch()
    classifier.run(tmp_path / "job", [tmp_path / "in"], size=2)
    rows = output_rows(tmp_path / "job" / "predictions.csv")
    assert [row["row"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert rows[0]["label"] == rows[3]["label"] == "positive"
    assert [row["error"] for row in rows[4:]] == [
        "There is no 'text'.",
        "The column 'text' is of type int, not a text.",
    ]


def test_errors_of_more_kinds_than_are_shown_are_counted(classifier: Opened, tmp_path: Path) -> None:
    names = [chr(ord("a") + at) for at in range(26)]
    lines = ['{"text": "a"}', *(f'{{"text": "a", "{name}": 1, "{name}": 1}}' for name in names)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    planned = classifier.plan(tmp_path / "job", [tmp_path / "a.jsonl"])
    [done] = score_chunks(planned, [0], classifier.model)
    summary = publish(planned, Threshold(-1))
    assert sum(done.errors.values()) == sum(summary["errors_by_kind"].values()) == summary["errors"] == 26


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_the_summary_counts_rows_whose_texts_were_cut(ending: str, classifier: Opened, tmp_path: Path) -> None:
    source = table(
        tmp_path / "a.csv", [{"text": text} for text in ("Lovely.", "Lovely. " * 1000, "Fine.", "Awful. " * 1000)]
    )
    classifier.run(tmp_path / "job", [source], size=3, file_name=f"out{ending}")
    rows = output_rows(tmp_path / "job" / f"out{ending}")
    summary = json.loads((tmp_path / "job" / "summary.json").read_bytes())
    assert summary["truncated_rows"] == sum(int(row["truncated_tokens"] or 0) > 0 for row in rows) == 2


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_no_rows_give_an_output_without_rows(ending: str, classifier: Opened, tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [])
    classifier.run(tmp_path / "job", [source], file_name=f"out{ending}", keep_columns="all")
    assert output_rows(tmp_path / "job" / f"out{ending}") == []


@pytest.mark.parametrize(
    ("columns", "changes", "reason"),
    [
        (["score"], {}, "--output-prefix predicted_"),
        (["row"], {"prefix": "predicted_"}, "Leave the column out of --keep-columns."),
        (["error"], {"prefix": "predicted_"}, "Leave the column out"),
        (["id"], {"columns": ["id", "text"]}, "two columns"),
        (["id"], {"columns": ["body"]}, "no column 'body'; its columns are id, text"),
        (["id"], {"keep_columns": "id,other"}, "no column 'other'"),
        (["id"], {"file_name": "../out.csv"}, "can't be the output's name"),
        (["id"], {"file_name": "out.txt"}, "can't be the output's name"),
        (["id"], {"file_name": "n" * 250 + ".csv"}, "can't be the output's name"),
    ],
)
def test_invalid_columns_and_output_names_are_refused_at_planning(
    columns: list[str],
    changes: dict[str, Any],
    reason: str,
    classifier: Opened,
    tmp_path: Path,
) -> None:
    source = table(tmp_path / "a.csv", [dict.fromkeys([*columns, "text"], "a")])
    with pytest.raises(UsageError) as caught:
        classifier.plan(tmp_path / "job", [source], **{"keep_columns": "all", **changes})
    assert reason in str(caught.value)
    assert not (tmp_path / "job" / "job.json").exists()
