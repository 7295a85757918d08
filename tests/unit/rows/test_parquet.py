"""Parquet: typed cells, unreadable rows, chunks across row groups, and broken or changed files."""

from __future__ import annotations

import datetime
import decimal
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hfx.errors import InputChanged
from hfx.rows import ChunkReader, Row, RowError, Source, columns_of, cut, source_of, verify


def written(folder: Path, table: pyarrow.Table, **settings: Any) -> Source:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(table, path, **settings)
    return source_of(str(path))


def read(source: Source, size: int, columns: list[str] | None = None) -> list[Row]:
    with ChunkReader(columns) as reader:
        return [row for chunk in cut(source, columns or [], size) for row in reader.rows(source, chunk)]


@pytest.mark.parametrize("size", [1, 4, 7, 64])
def test_rows_are_the_same_whatever_the_chunks_and_row_groups(size: int, tmp_path: Path) -> None:
    texts = [None if number % 5 == 0 else f"é{number}" for number in range(20)]
    source = written(tmp_path, pyarrow.table({"n": range(20), "text": texts, "x": texts}), row_group_size=6)
    chunks = list(cut(source, ["text"], size))
    with ChunkReader(["text"]) as reader:
        alone = {row.place.number: row for chunk in reversed(chunks) for row in reader.rows(source, chunk)}
    rows = read(source, size, ["text"])
    assert [row.cells for row in rows] == [{"text": text} for text in texts]
    assert [row.place.number for row in rows] == list(range(1, 21))
    assert rows == [alone[number] for number in sorted(alone)]
    assert columns_of(source) == ("n", "text", "x")


def test_a_row_group_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path, pyarrow.table({"n": range(1000)}))
    chunks, calls = list(cut(source, ["n"], 10)), []
    decode = pyarrow.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile, "iter_batches", lambda *args, **named: calls.append(1) or decode(*args, **named)
    )
    with ChunkReader() as reader:
        assert sum(1 for chunk in chunks for _ in reader.rows(source, chunk)) == 1000
    assert len(calls) == 1


def test_cells_are_plain_values(tmp_path: Path) -> None:
    cells = {
        "flag": True, "bytes": b"\xff", "nested": [{"a": [1, None], "b": "x"}], "none": None,
        "date": datetime.date(2024, 5, 6), "price": decimal.Decimal("1.50"),
    }  # fmt: skip
    table = pyarrow.table({name: [value] for name, value in cells.items()})
    times = pyarrow.array([1], pyarrow.timestamp("ns"))
    category = pyarrow.array(["c"]).dictionary_encode()
    (row,) = read(written(tmp_path, table.append_column("ns", times).append_column("category", category)), 4)
    assert row.cells == {**cells, "ns": "1970-01-01 00:00:00.000000001", "category": "c"} and row.error is None


def test_a_cell_that_can_not_be_read_makes_its_row_bad(tmp_path: Path) -> None:
    content = pyarrow.array([b"a", b"\xff", b"c"])
    texts = pyarrow.StringArray.from_buffers(3, content.buffers()[1], content.buffers()[2])
    years = pyarrow.array([0, 0, 10**12], pyarrow.timestamp("s"))
    rows = read(written(tmp_path, pyarrow.table({"id": [1, 2, 3], "text": texts, "year": years})), 2)
    assert rows[0].cells["text"] == "a" and rows[0].error is None
    assert rows[1].cells.keys() == {"id", "year"} and rows[2].cells == {"id": 3, "text": "c"}
    for row, column in ((rows[1], "text"), (rows[2], "year")):
        assert row.error is not None and f"column '{column}' can't be read" in row.error.reason
        assert f", row {row.place.number}" in row.error.message


def test_a_file_without_rows_has_no_chunks(tmp_path: Path) -> None:
    assert list(cut(written(tmp_path, pyarrow.table({"text": pyarrow.array([], "string")})), ["text"], 4)) == []


def test_a_broken_file_is_refused_when_it_is_cut(tmp_path: Path) -> None:
    table = pyarrow.table({"text": [os.urandom(20).hex() for _ in range(5000)], "id": range(5000)})
    content = Path(written(tmp_path, table, write_page_checksum=True).name).read_bytes()
    damaged = content[:1000] + b"\0" * 1000 + content[2000:]
    for broken in (b"", b"PAR1", content[:-20], content[:4], damaged):
        (tmp_path / "a.parquet").write_bytes(broken)
        with pytest.raises(RowError, match="not a readable Parquet file"):
            list(cut(source_of(str(tmp_path / "a.parquet")), ["text"], 64))


@pytest.mark.parametrize(("columns", "words"), [(["a", "a"], "'a' stands there twice"), (["b", "c"], "no column 'a'")])
def test_missing_and_duplicate_columns_are_refused(columns: list[str], words: str, tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], columns)
    with pytest.raises(RowError, match=words):
        list(cut(written(tmp_path, table), ["a"], 4))


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, pyarrow.table({"text": ["a", "b"]}))
    chunks = list(cut(source, ["text"], 1))
    verify(source, chunks)
    os.utime(source.name, (1, 1))  # another time alone is no change
    with ChunkReader() as reader:
        assert [row.cells for row in reader.rows(source, chunks[0])] == [{"text": "a"}]
    written(tmp_path, pyarrow.table({"text": ["a", "c"]}))
    with pytest.raises(InputChanged):
        verify(source, chunks)
    with ChunkReader() as reader, pytest.raises(InputChanged):
        list(reader.rows(source, chunks[0]))


def test_parquet_says_which_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path, pyarrow.table({"text": ["a"]}))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RowError, match=r"\[batch\]"):
        columns_of(source)
