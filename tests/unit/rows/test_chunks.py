"""Files cut into chunks give the same rows whatever the chunks, and damaged or changed files are refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfx.errors import InputChanged
from hfx.rows import Chunk, ChunkReader, Row, RowError, Source, cut, source_of, verify

ROWS = (1, 4, 64)  # of a chunk
CELL = st.text(st.sampled_from('ab,"\t \r\n\ufeffé€😀\x85\u2028'), max_size=8)


def written(folder: Path, name: str, content: str | bytes) -> Source:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return source_of(str(path))


def read(source: Source, chunks: Sequence[Chunk]) -> list[Row]:
    with ChunkReader() as reader:
        return [row for chunk in chunks for row in reader.rows(source, chunk)]


def read_in_every_way(source: Source, columns: Sequence[str]) -> list[Row]:
    """Return the rows, after a check that chunks of every size give the same rows, together and one by one."""
    answers = []
    for size in ROWS:
        chunks = list(cut(source, columns, size))
        rows = read(source, chunks)
        assert [chunk.rows for chunk in chunks[:-1]] == [size] * len(chunks[:-1])
        assert [row.place.number for row in rows] == list(range(1, len(rows) + 1))
        alone = [row for chunk in reversed(chunks) for row in reversed(read(source, [chunk]))]
        assert values(alone[::-1]) == values(rows)
        answers.append(rows)
    assert values(answers[0]) == values(answers[1]) == values(answers[2])
    return answers[0]


def values(rows: Sequence[Row]) -> list[object]:
    return [(row.cells, row.place, row.error and row.error.message) for row in rows]


@settings(max_examples=150, deadline=None)
@given(
    table=st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), max_size=9)),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
    name=st.sampled_from(["a.csv", "a.tsv"]),
    blank=st.booleans(),
)
def test_a_table_is_read_as_it_was_written(
    table: list[list[str]], end: str, mark: str, name: str, blank: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header = [f"column {at}" for at in range(len(table[0]))] if table else ["text"]
    text = io.StringIO(newline="")
    delimiter = "\t" if name == "a.tsv" else ","
    # Before Python 3.13 a writer with "\n" line ends does not quote cells with "\r".
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    for record in [header, *table]:
        writer.writerow(record)
        text.write(end * blank)
    source = written(tmp_path_factory.mktemp("table"), name, mark + text.getvalue())
    rows = read_in_every_way(source, header)
    assert [list(row.cells.values()) for row in rows] == table
    assert all(row.error is None and list(row.cells) == header for row in rows)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(CELL, max_size=9), mark=st.sampled_from(["", "\ufeff"]), blank=st.sampled_from(["", "\n", " \n"]))
def test_json_lines_are_read_as_they_were_written(
    texts: list[str], mark: str, blank: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    objects = [{"id": number, "text": text} for number, text in enumerate(texts)]
    content = mark + "".join(blank + json.dumps(each, ensure_ascii=False) + "\n" for each in objects)
    rows = read_in_every_way(written(tmp_path_factory.mktemp("json"), "a.jsonl", content), ["text"])
    assert [row.cells for row in rows] == objects


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", "é", ",", '"', '""', '","', "\n", '"\n', "\r\n", "\r", "\0", "\udce4"])),
    block=st.sampled_from([1, 2, 7, 2**20]),
    size=st.sampled_from([1, 3, 64]),
)
def test_rows_end_where_csv_ends_them(
    parts: list[str], block: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = "a,b\n" + "".join(parts)
    source = written(tmp_path_factory.mktemp("any"), "a.csv", content.encode(errors="surrogateescape"))
    reader = csv.reader(io.StringIO(content, newline="\n"), strict=True)
    try:
        records = [cells for cells in reader if cells][1:]
    except csv.Error as error:
        with pytest.raises(RowError, match=re.escape(str(error))):
            cut_in_blocks(source, size, block)
        return
    chunks = cut_in_blocks(source, size, block)
    rows = read(source, chunks)
    assert sum(chunk.rows for chunk in chunks) == len(rows) == len(records)
    for row, cells in zip(rows, records, strict=True):
        is_bad = len(cells) != 2 or any(re.search("[\0\udce4]", cell) for cell in cells)
        assert (row.error is not None) == is_bad
        assert is_bad or list(row.cells.values()) == cells


def cut_in_blocks(source: Source, rows: int, block: int) -> list[Chunk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hfx.rows.planning.BLOCK", block)
        return list(cut(source, ["a"], rows))


BAD_ROWS = {
    "ragged": ("a.csv", b"id,text\n1,a\n2\n3,b,c\n4,d\n", {2: (3, "fields is 1, not 2"), 3: (4, "fields is 3, not 2")}),
    "not UTF-8": ("a.csv", b"id,text\n1,\xe4\n2,b\n", {1: (2, r"not UTF-8 \(byte 3 of line 2\)")}),
    "not UTF-8 in a cell of three lines": (
        "a.csv", b'id,text\n1,"a\nb\xe9\nc"\n2,b\n', {1: (2, r"not UTF-8 \(byte 2 of line 3\)")}),
    "NUL": ("a.tsv", b"id\ttext\n1\ta\0\n2\tb\n", {1: (2, "NUL")}),
    "no object": ("a.jsonl", b'{"text": "a"}\n\n[1]\n{"text": "b"}\n{"text": "c"\n', {2: (3, "list"), 4: (5, "a J")}),
    "JSON that is no text": ("a.jsonl", b'{"text": "a"}\n{"text": "\xe4"}\n', {2: (2, "not UTF-8")}),
    "half a character": ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}\n{"text": "\\ud83d\\ude00"}', {2: (2, "ha")}),
    "no number": ("a.jsonl", b'{"text": 1}\n{"text": 1e999}\n{"text": NaN}', {2: (2, "too large"), 3: (3, "NaN")}),
    "a line that is no text": ("a.txt", b"a\n\xff\n\nb\0", {2: (2, "not UTF-8"), 4: (4, "NUL")}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "errors"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_has_its_reason_and_changes_no_other(
    name: str, content: bytes, errors: dict[int, tuple[int, str]], tmp_path: Path
) -> None:
    source = written(tmp_path, name, content)
    rows = read_in_every_way(source, ["text"])
    lines = {row.place.number: row.place.line for row in rows if row.error}
    assert lines == {number: line for number, (line, _) in errors.items()}
    for row in rows:
        if row.error is not None:
            assert re.search(errors[row.place.number][1], row.error.reason)
            assert source.name in row.error.message and source.name not in row.error.reason
        else:
            assert row.cells["text"] in (1, "a", "b", "c", "d", "", "😀")


def test_of_a_row_that_is_not_utf8_the_other_cells_are_kept(tmp_path: Path) -> None:
    (row,) = read_in_every_way(written(tmp_path, "a.csv", b"id,text\n7,\xe4\n"), ["text"])
    assert row.cells == {"id": "7"}


REFUSED = {
    "empty": ("a.csv", b"", None, "empty"),
    "no such column": ("a.csv", b"id,txt\n1,a\n", 1, "no column 'text'; its columns are id, txt"),
    "a column twice": ("a.csv", b"\ntext,text\n", 2, "'text' stands there twice"),
    "an open quote": ("a.csv", b'text\na\n"b\nc\n', 3, "unexpected end of data"),
    "text behind a quote": ("a.csv", b'text\na\n"b"c\n', 3, "expected after"),
    "a return in an open cell": ("a.csv", b"text\na\nb\rc\n", 3, "new-line character"),
    "a header that is no text": ("a.csv", b"text,\xe4\n", 1, "not UTF-8"),
    "UTF-16": ("a.csv", "text\nä\n".encode("utf-16"), None, "UTF-16"),
    "Latin-1": ("a.csv", b"text\n" + b"a\n\xe4\n" * 20, 3, "not UTF-8, and neither are 19 more"),
    "Latin-1 text": ("a.txt", b"\xe4\n" * 20, 1, "not UTF-8"),
    "Latin-1 and quotes in cells": ("a.csv", b'text\n5" \xe4\n' + b"\xe4\n" * 19, 2, "not UTF-8"),
    "no objects": ("a.jsonl", b"[1]\n[2]\n", 1, "it is a list"),
    "other objects": ("a.jsonl", b'[1]\n{"txt": 1}\n', 1, "no column 'text'; its columns are txt"),
    "a torn gzip": ("a.csv.gz", gzip.compress(b"text\n" + b"a\n" * 1000)[:-9], None, "not a whole gzip"),
    "no gzip": ("a.csv.gz", b"text\na\n", None, "not a whole gzip"),
    "garbage behind a gzip": ("a.csv.gz", gzip.compress(b"text\na\n") + b"garbage", None, "not a whole gzip"),
    "damaged gzip": ("a.csv.gz", gzip.compress(b"text\na\n")[:-8] + b"12345678", None, "not a whole gzip"),
}


@pytest.mark.parametrize(("name", "content", "line", "words"), REFUSED.values(), ids=REFUSED)
def test_a_bad_file_is_refused_when_it_is_cut(
    name: str, content: bytes, line: int | None, words: str, tmp_path: Path
) -> None:
    source = written(tmp_path, name, content)
    with pytest.raises(RowError, match=words) as caught:
        list(cut(source, ["text"], 4))
    assert caught.value.message.startswith(source.name) and caught.value.fix
    assert (caught.value.place.line if caught.value.place else None) == line


@pytest.mark.parametrize(
    "content", [b"text\n" + b"\xe4\n" * 19, b"text\n" + b"\xe4\n" * 25 + "ä\n".encode()], ids=["few", "some are"]
)
def test_lines_of_another_encoding_are_bad_rows_where_the_file_is_utf8(content: bytes, tmp_path: Path) -> None:
    rows = read_in_every_way(written(tmp_path, "a.csv", content), ["text"])
    assert [row.error is not None for row in rows] == [line == b"\xe4" for line in content.splitlines()[1:]]


@pytest.mark.parametrize(("name", "content"), [("a.csv", "text\n"), ("a.csv", "text"), ("a.jsonl", ""), ("a.txt", "")])
def test_a_file_without_rows_has_no_chunks(name: str, content: str, tmp_path: Path) -> None:
    assert read_in_every_way(written(tmp_path, name, content), ["text"]) == []


def test_text_is_a_row_a_line(tmp_path: Path) -> None:
    rows = read_in_every_way(written(tmp_path, "a.txt", "\ufeffone\r\n\ntwo, three\r"), ["text"])
    assert [row.cells for row in rows] == [{"text": "one"}, {"text": ""}, {"text": "two, three"}]


def test_rows_have_only_the_requested_columns(tmp_path: Path) -> None:
    for name, content in (("a.csv", "a,b,c\n1,2,3\n"), ("a.jsonl", '{"a": "1", "b": "2", "c": "3"}\n{"a": "4"}')):
        source = written(tmp_path, name, content)
        with ChunkReader(["c", "a", "z"]) as reader:
            rows = [row.cells for chunk in cut(source, ["a"], 9) for row in reader.rows(source, chunk)]
        assert rows[0] == {"a": "1", "c": "3"}
        assert rows[1:] in ([], [{"a": "4"}])


def test_a_compressed_file_has_the_same_chunks_and_is_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"id,text\n" + b'1,"a\nb"\n' * 1000
    plain = written(tmp_path, "a.csv", content)
    packed = written(tmp_path, "a.csv.gz", gzip.compress(content[:50]) + gzip.compress(content[50:]))
    chunks = list(cut(plain, ["text"], 64))
    assert list(cut(packed, ["text"], 64)) == chunks
    assert [row.cells for row in read(packed, chunks[-1:])] == [{"id": "1", "text": "a\nb"}] * (1000 % 64)
    monkeypatch.setattr(gzip.GzipFile, "rewind", lambda _: pytest.fail("it is read again"))
    assert [row.cells for row in read(packed, chunks)] == [{"id": "1", "text": "a\nb"}] * 1000


CHANGES = {
    "a byte": lambda content: content.replace(b"row 5", b"row X"),
    "a header": lambda content: content.replace(b"text", b"TEXT"),
    "an end": lambda content: content[:-8],
    "a line end": lambda content: content.replace(b"row 5\n", b"row 5,"),
    "an open quote": lambda content: content.replace(b"row 5", b'"ow 5'),
    "more rows": lambda content: content.replace(b"row 5", b"r\n\n\n5"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changed_since_its_plan_is_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    content = b"id,text\n" + b"".join(b"%d,row %d\n" % (at, at) for at in range(10))
    source = written(tmp_path, "a.csv", content)
    chunks = list(cut(source, ["text"], 4))
    verify(source, chunks)
    Path(source.name).write_bytes(change(content))
    with pytest.raises(InputChanged, match=re.escape(source.name)):
        verify(source, chunks)
    with pytest.raises(InputChanged, match=re.escape(source.name)):
        read(source, chunks)


def test_a_plan_keeps_chunks_as_json(tmp_path: Path) -> None:
    (chunk,) = cut(written(tmp_path, "a.csv", "text\na\n"), ["text"], 4)
    assert Chunk(**json.loads(json.dumps(asdict(chunk)))) == chunk


def test_a_csv_file_without_a_header_gets_a_hint(tmp_path: Path) -> None:
    for name, has_hint in (("a.csv", True), ("a.jsonl", False)):
        path = tmp_path / name
        path.write_text("A fine film,pos\nA bad one,neg\n" if has_hint else '{"a": "A fine film"}\n')
        with pytest.raises(RowError, match="it has no column 'text'") as refused:
            next(cut(source_of(str(path)), ("text",), 10))
        assert ("no header" in refused.value.fix) is has_hint
        assert "--column" in refused.value.fix
