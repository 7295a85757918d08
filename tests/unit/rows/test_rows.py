"""Rows of every format: their cells, their line numbers, and errors with the place."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from hfx.rows import Place, RowError, lines, read_rows

CSV = '\ufeffid,text\r\n1,"a, ""b"""\r\n\r\n2,"two\nlines"\r\n3,\u00e9\r\n'
FILES = {
    "a.csv": CSV,
    "a.tsv": 'id\ttext\n1\t"a, ""b"""\n2\t"two\nlines"\n3\t\u00e9',
    "a.jsonl": '{"id": "1", "text": "a, \\"b\\""}\n\n{"id": "2", "text": "two\\nlines"}\n{"id": "3", "text": "\u00e9"}',
}
CELLS = [{"id": "1", "text": 'a, "b"'}, {"id": "2", "text": "two\nlines"}, {"id": "3", "text": "é"}]


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", FILES)
def test_rows_of_every_format_are_the_same(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, FILES[name])
    found = read_rows(path)
    rows = list(found.rows)
    assert found.columns == ("id", "text") and found.textual == (name != "a.jsonl")
    assert [dict(row.cells) for row in rows] == CELLS and [row.place.number for row in rows] == [1, 2, 3]
    if name == "a.csv":
        assert [row.place.line for row in rows] == [2, 4, 6]


def test_plain_text_is_a_row_a_line(tmp_path: Path) -> None:
    found = list(read_rows(written(tmp_path, "a.txt", "one\r\n\ntwo, three")).rows)
    assert [row.cells for row in found] == [{"text": "one"}, {"text": ""}, {"text": "two, three"}]
    assert [row.place.line for row in found] == [1, 2, 3]


def test_parquet_has_its_own_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers = list(range(10))
    pyarrow.parquet.write_table(pyarrow.table({"n": numbers, "texts": [["a", "b"]] * 10}), path, row_group_size=4)
    rows = list(read_rows(path).rows)
    assert [row.cells for row in rows] == [{"n": number, "texts": ["a", "b"]} for number in numbers]
    assert [row.place for row in rows] == [Place(number + 1) for number in numbers]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RowError, match="not a readable Parquet file"):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("a.csv", "", None, "is empty"),
        ("a.csv", "text,text\na,b\n", 1, "the column 'text' stands there twice"),
        ("a.csv", "id,text\n1,a\n2\n", 3, "fields is 1, not 2"),
        ("a.csv", 'text\na\n"b\nc\n', 3, "unexpected end of data"),
        ("a.csv", b"text\na\n\xe4\n", 3, r"not UTF-8 \(byte 1 of line 3\)"),
        ("a.csv", b"text\na\nb\0c\n", 3, r"NUL \(byte 2 of line 3\)"),
        ("a.txt", b"a\n\xff", 2, "not UTF-8"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"\n', 2, "not a JSON object"),
        ("a.jsonl", '{"text": "a"}\n\n["b"]\n', 3, "it is a list"),
        ("a.jsonl", '{"a": 1}\n{"a": 1, "a": 2}', 2, "'a' stands twice"),
        ("a.jsonl", '{"a": NaN}', 1, "NaN is not a number"),
        ("a.jsonl", "[" * 100_000, 1, "not a JSON object"),
        ("a.jsonl", "\n\n", None, "is empty"),
        ("a.xlsx", "x", None, "format can't be read"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(
    name: str, content: str | bytes, line: int | None, words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(RowError, match=words) as caught:
        list(read_rows(path).rows)
    assert (caught.value.name, caught.value.place and caught.value.place.line) == (str(path), line)
    assert str(path) in caught.value.message and caught.value.fix


def test_a_path_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "none.csv", tmp_path / "folder.csv", tmp_path / "pipe.csv"):
        with pytest.raises(RowError, match="can't be read"):
            read_rows(path)


def test_lines_go_on_after_one_that_is_no_text() -> None:
    found = list(lines(io.BytesIO(b"a\n\xff\nb")))
    assert [each.number for each in found] == [1, 2, 3]
    assert [each.text if isinstance(each.text, str) else None for each in found] == ["a\n", None, "b"]
