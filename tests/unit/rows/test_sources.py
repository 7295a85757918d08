"""Input files from folders, globs and URIs: each file once, and refusals of unreadable ones."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import pytest

from hfx.errors import UsageError
from hfx.rows import ChunkReader, RowError, cut, find_sources, source_of, stores

FILES = ("b.csv", "a.csv", "sub/c.jsonl.gz", "sub/d.TSV", "sub/deep/e.parquet", "sub/f g#é%20.txt")
OTHERS = ("_SUCCESS", ".hidden.csv", "_temporary/0.csv", "sub/.git/x.txt", "README.md", "e.parquet.gz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*FILES, *OTHERS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text\nx\n")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    return tmp_path


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_a_folder_is_its_data_files_in_order(folder: Path, prefix: str) -> None:
    found = find_sources([f"{prefix}{folder}"])
    names = ["a.csv", "b.csv", "sub/c.jsonl.gz", "sub/d.TSV", "sub/deep/e.parquet", "sub/f g#é%20.txt"]
    assert [source.name for source in found] == [f"{folder}/{name}" for name in names]
    assert [source.format for source in found] == ["csv", "csv", "jsonl", "tsv", "parquet", "text"]
    assert [source.compressed for source in found] == [False, False, True, False, False, False]
    assert [source_of(source.name) for source in found] == list(found)


def test_a_store_is_listed_like_a_folder(folder: Path) -> None:
    """pyarrow's file system for local files stands for the store."""
    (folder / "sub" / "loop").unlink()
    names = stores.names_in(f"file://{folder}/?a=b") or []
    found = [f"file://{folder}/{name}?a=b" for name in ("README.md", "a.csv", "b.csv", "e.parquet.gz")]
    assert names[:4] == found and names[-1] == f"file://{folder}/sub/f%20g%23%C3%A9%2520.txt?a=b" and len(names) == 8
    assert stores.names_in(f"file://{folder}/*/[c-d]*") == [
        f"file://{folder}/sub/{name}" for name in ("c.jsonl.gz", "d.TSV")
    ]
    assert stores.names_in(names[-1]) is None and stores.names_in(f"file://{folder}/none/*") == []
    with source_of(names[-1]).open() as file:
        assert file.read() == b"text\nx\n"


def test_inputs_keep_their_order_and_globs_are_sorted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = find_sources(["sub/d.TSV", "*.csv", f"file://{folder}/sub/*/*.parquet", "s*/deep/../*.txt"])
    assert [Path(source.name).name for source in found] == ["d.TSV", "a.csv", "b.csv", "e.parquet", "f g#é%20.txt"]
    assert [source.name for source in find_sources(["**/*.parquet"])] == [f"{folder}/sub/deep/e.parquet"]


def test_a_name_with_wildcards_is_a_file_where_there_is_one(folder: Path) -> None:
    path = folder / "x[1].csv"
    path.write_bytes(b"text\n")
    assert [source.name for source in find_sources([str(path)])] == [str(path)]


def test_a_given_format_takes_every_file(folder: Path) -> None:
    assert "README.md" in [Path(source.name).name for source in find_sources([str(folder)], "text")]
    (source,) = find_sources([str(folder / "README.md")], "csv")
    assert source.format == "csv"


def test_a_file_that_is_named_is_never_skipped(folder: Path) -> None:
    assert len(find_sources([str(folder / ".hidden.csv"), str(folder / "_temporary" / "0.csv")])) == 2


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (["a.csv", "*.csv"], "a.csv: it is given twice"),
        (["a.csv", "sub/loop/a.csv"], "given twice"),
        (["none.csv"], "can't be read: No such file"),
        (["*.none"], "no files to read"),
        (["README.md"], "format can't be read"),
        (["e.parquet.gz"], "format can't be read"),
        (["pipe.csv"], "not a regular file"),
        (["file:///none.csv"], "can't be read: No such file"),
        (["s3://a b.csv"], "syntax error"),
        (["s3://*/a.csv"], "a glob for buckets"),
        (["nowhere://a.csv"], "Unrecognized filesystem type"),
        (["s3://key:secret@bucket/a.csv?region=x"], "password"),
    ],
)
def test_unreadable_and_duplicate_inputs_are_refused(
    inputs: list[str], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    os.mkfifo("pipe.csv")
    with pytest.raises(UsageError, match=words) as caught:
        find_sources(inputs)
    assert caught.value.fix
    assert "secret" not in str(caught.value)


def test_a_folder_that_may_not_be_read_is_no_empty_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)  # as of a folder of somebody else's, also where root runs the tests
    with pytest.raises(RowError, match="Permission denied"):
        find_sources([str(folder)])


def test_stores_say_which_extra_they_need(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(UsageError, match=r"\[batch\]"):
        find_sources([f"s3://{folder}"])


def test_a_file_of_a_store_is_read_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text\n" + b"".join(b"%d\n" % number for number in range(100))))
    source = source_of(f"file://{path}")
    with ChunkReader() as reader:
        rows = [row for chunk in cut(source, ["text"], 7) for row in reader.rows(source, chunk)]
    assert [row.cells["text"] for row in rows] == [str(number) for number in range(100)]
