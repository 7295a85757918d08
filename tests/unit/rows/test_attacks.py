"""Hostile files: decompression bombs and endless lines take little memory and spoil no other row."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.rows import ChunkReader, cut, source_of

MIB = 2**20
READ = """
import json, resource, sys
import numpy
from hfx.rows import ChunkReader, RowError, cut, source_of
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = source_of(sys.argv[1])
try:
    chunks = list(cut(source, [], 4096))
    cut_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ChunkReader() as reader:
        errors = [row.error and row.error.reason for chunk in chunks for row in reader.rows(source, chunk)]
    found = {"rows": len(errors), "errors": [error for error in errors if error]}
except RowError as error:
    found, cut_peak = {"refused": error.reason}, before
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({**found, "cut": (cut_peak - before) / 1024, "read": (peak - before) / 1024}))
"""


def bomb(path: Path, start: bytes, member: bytes, times: int, end: bytes = b"") -> Path:
    """Write a gzip file of `times` times `member`, compressed once."""
    packed = gzip.compress(member, 1)
    path.write_bytes(gzip.compress(start) + packed * times + gzip.compress(end))
    return path


def read(path: Path) -> dict[str, object]:
    ran = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    return dict(json.loads(ran.stdout))


@pytest.mark.slow
def test_a_bomb_of_rows_is_read_in_little_memory(tmp_path: Path) -> None:
    row = b"1," + b"x" * 1020 + b"\n"
    path = bomb(tmp_path / "a.csv.gz", b"id,text\n", row * 1024, 100)
    assert path.stat().st_size < 2 * MIB
    found = read(path)
    assert (found["rows"], found["errors"]) == (100 * 1024, [])
    assert max(found["cut"], found["read"]) < 32


@pytest.mark.slow
def test_a_line_without_end_is_one_bad_row(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.jsonl.gz", b'{"a": 1}\n{"a": "', b"x" * MIB, 100, b'"}\n{"a": 2}\n')
    found = read(path)
    assert (found["rows"], len(found["errors"])) == (3, 1) and "64 MiB" in found["errors"][0]
    assert found["cut"] < 32
    assert found["read"] < 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "words"), [(b'text\n"', "field larger than field limit"), (b"text\n", "longer than 64 mib")]
)
def test_a_cell_without_end_is_refused(start: bytes, words: str, tmp_path: Path) -> None:
    filler = b"x" * MIB if words.startswith("longer") else (b"x" * 1023 + b"\n") * 1024
    found = read(bomb(tmp_path / "a.csv.gz", start, filler, 100))
    assert words in str(found["refused"]).lower()
    assert found["read"] < 700  # csv takes four bytes a character, and twice as many when it grows


def test_nested_json_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": ' + "[" * 10**6 + "]" * 10**6 + '}\n{"a": ' + "9" * 10**5 + '}\n{"a": 2}\n')
    source = source_of(str(path))
    with ChunkReader() as reader:
        rows = [row for chunk in cut(source, ["a"], 2) for row in reader.rows(source, chunk)]
    assert [row.cells for row in rows] == [{"a": 1}, {}, {}, {"a": 2}]


def test_many_columns_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(map(str, range(10**5))) + "\n" + "," * (10**5 - 1) + "\n")
    (chunk,) = cut(source_of(str(path)), ["7"], 2)
    assert chunk.rows == 1
