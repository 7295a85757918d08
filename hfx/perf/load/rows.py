"""Rows of a CSV, TSV, JSON-lines or Parquet file, each with its place in it.

Owns the formats and their errors, which all name the file and the line. It must not know what the columns mean.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import UsageError

FORMATS = ".csv, .tsv, .jsonl, .ndjson or .parquet"
BATCH = 1024  # rows of Parquet at a time


@dataclass(frozen=True)
class Row:
    """A row: where it stands ("line 7") and its cells by column; of a CSV all are texts."""

    place: str
    cells: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """A file: its columns (of JSON lines those of the first line), its rows, whether cells are texts to be read."""

    columns: tuple[str, ...]
    rows: Iterator[Row]
    textual: bool


def read_rows(path: Path) -> Rows:
    """The rows of PATH, in the format of its suffix. Raises UsageError here or while they are read."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise UsageError(f"{path} is in no format that can be read.", f"Give a file that ends in {FORMATS}.")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise UsageError(f"{path} is empty.", "Give a file with a row for each request.")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.", "Give the path of a data file.") from error
    return read(path)


def _read_csv(path: Path) -> Rows:
    return _separated(path, ",")


def _read_tsv(path: Path) -> Rows:
    return _separated(path, "\t")


def _separated(path: Path, delimiter: str) -> Rows:
    csv.field_size_limit(sys.maxsize)  # documents are longer than csv's 128 KiB
    lines = _cells(path, delimiter)
    _, header = next(lines, (1, []))
    repeated = [name for name in header if header.count(name) > 1]
    if repeated:
        raise UsageError(f"{path}, line 1: the column {repeated[0]!r} stands there twice.", "Rename one.")
    return Rows(tuple(header), _rows(path, header, lines), textual=True)


def _rows(path: Path, header: list[str], lines: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    for line, cells in lines:
        if not cells:
            continue
        if len(cells) != len(header):
            raise UsageError(
                f"{path}, line {line}: {len(cells)} fields under {len(header)} columns.",
                'Quote fields that hold the separator, quotes or line ends ("…").',
            )
        yield Row(f"line {line}", dict(zip(header, cells, strict=True)))


def _cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    line = 1
    try:
        # As bytes a line, so that what is no UTF-8 can be told by its line.
        with path.open("rb") as file:
            reader = csv.reader(_decoded(path, file), delimiter=delimiter, strict=True)
            for cells in reader:
                yield line, cells
                line = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"{path}, line {line}: {error}.", "Is every quoted field closed?") from None


def _decoded(path: Path, file: Iterator[bytes]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path}, line {number}: it is not UTF-8 (byte {error.start + 1} of the line).",
                "Convert it first, e.g. with iconv -f latin1 -t utf-8.",
            ) from None
        yield text


def _read_json(path: Path) -> Rows:
    objects = _objects(path)
    first = next(objects, None)
    if first is None:
        raise UsageError(f"{path} is empty.", "Give an object a line.")
    return Rows(tuple(first.cells), _again(first, objects), textual=False)


def _again(first: Row, others: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from others


def _objects(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(_decoded(path, file), 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except RecursionError:
                raise _no_object(path, number, "it is nested too deeply") from None
            except ValueError as error:
                reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                raise _no_object(path, number, str(reason)) from None
            if not isinstance(value, dict):
                raise _no_object(path, number, f"it is a {type(value).__name__}")
            yield Row(f"line {number}", value)


def _no_object(path: Path, line: int, reason: str) -> UsageError:
    return UsageError(f"{path}, line {line}: no JSON object: {reason}.", 'Write one a line, e.g. {"text": "Hello"}.')


def _read_parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    def broken(error: Exception) -> UsageError:
        reason = str(error).splitlines()[0].rstrip(".")
        return UsageError(f"{path} is no readable Parquet file: {reason}.", "Write it again, or give a CSV.")

    def rows() -> Iterator[Row]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=BATCH):
                for cells in batch.to_pylist():
                    number += 1
                    yield Row(f"row {number}", cells)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise broken(error) from None

    try:
        file = pyarrow.parquet.ParquetFile(path)
        return Rows(tuple(file.schema_arrow.names), rows(), textual=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise broken(error) from None


READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".parquet": _read_parquet,
}
