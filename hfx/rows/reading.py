"""`read_rows`: the rows of a file in the format of its suffix, from the start or after a row that was read before."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hfx.errors import UsageError
from hfx.rows.text import MAX_BYTES, Line, json_object, lines

FORMATS = ".csv, .tsv, .jsonl, .ndjson, .txt or .parquet"
BATCH = 1024  # rows of Parquet at a time
TEXT = "text"  # the column of plain text


@dataclass(frozen=True)
class Place:
    """Where a row stands: its number from 1, its first line, the line after it, its bytes [`start`, `end`).

    Of Parquet only the number is known; the others are 0.
    """

    number: int
    line: int = 0
    next_line: int = 0
    start: int = 0
    end: int = 0


FIRST = Place(0, next_line=1)  # before the first row


@dataclass(frozen=True)
class Row:
    """The cells of a row by column, and its place."""

    cells: Mapping[str, Any]
    place: Place


@dataclass(frozen=True)
class Rows:
    """A file: its columns (of JSON lines those of the first row), its rows, and whether all cells are str."""

    columns: tuple[str, ...]
    rows: Iterator[Row]
    textual: bool


class RowError(UsageError):
    """What is wrong with a file or with one of its rows, whose `place` and `column` are given where they are known."""

    def __init__(self, path: Path, reason: str, fix: str, place: Place | None = None, column: str = "") -> None:
        where = str(path)
        if place is not None:
            where += f", line {place.line}" if place.line else f", row {place.number}"
        if column:
            where += f", column {column!r}"
        super().__init__(f"{where}: {'it ' + reason[3:] if reason.startswith('It ') else reason}", fix)
        self.path, self.place, self.column = path, place, column


def read_rows(path: Path, after: Place | None = None) -> Rows:
    """The rows of `path`; with the place of a row of the same file, those behind it, reading nothing before.

    Raises RowError here or while they are read.
    """
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise RowError(path, "its format can't be read.", f"Give a file that ends in {FORMATS}.")
    if path.exists() and not path.is_file():  # a pipe would block, and a file is opened more than once
        raise RowError(path, "it can't be read: not a regular file.", "Write the rows to a file first.")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise RowError(path, "it is empty.", "Give a file with a row for each request.")
    except OSError as error:
        raise RowError(path, f"it can't be read: {error.strerror}.", "Give the path of a data file.") from error
    return read(path, after)


def _read_csv(path: Path, after: Place | None, delimiter: str = ",") -> Rows:
    csv.field_size_limit(MAX_BYTES)  # documents are longer than csv's 128 KiB
    header, head = next(_csv_records(path, Place(-1, next_line=1), delimiter), ([], FIRST))
    repeated = [name for name in header if header.count(name) > 1]
    if repeated:
        raise RowError(path, f"the column {repeated[0]!r} stands there twice.", "Rename one.", head)
    return Rows(tuple(header), _csv_rows(path, header, after or head, delimiter), textual=True)


def _csv_rows(path: Path, header: Sequence[str], after: Place, delimiter: str) -> Iterator[Row]:
    for cells, place in _csv_records(path, after, delimiter):
        if len(cells) != len(header):
            reason = f"{len(cells)} fields under {len(header)} columns."
            raise RowError(path, reason, 'Quote fields that hold the separator, quotes or line ends ("…").', place)
        yield Row(dict(zip(header, cells, strict=True)), place)


def _csv_records(path: Path, after: Place, delimiter: str) -> Iterator[tuple[list[str], Place]]:
    """The cells of each row, and its place; csv takes no more lines than its next row needs."""
    number, last = after.number, Line(after.next_line - 1, 0, after.end, "")

    def texts() -> Iterator[str]:
        nonlocal last
        for last in _whole_lines(path, after):
            yield str(last.text)

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        first, start = last.number + 1, last.end
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise RowError(path, f"{error}.", "Is every quoted field closed?", Place(number + 1, first)) from None
        if cells:
            number += 1
            yield cells, Place(number, first, last.number + 1, start, last.end)


def _read_json(path: Path, after: Place | None) -> Rows:
    first = next(_json_rows(path, FIRST), None)
    if first is None:
        raise RowError(path, "it is empty.", "Give an object a line.")
    return Rows(tuple(first.cells), _json_rows(path, after or FIRST), textual=False)


def _json_rows(path: Path, after: Place) -> Iterator[Row]:
    number = after.number
    for line in _whole_lines(path, after):
        if not str(line.text).strip():
            continue
        number += 1
        place = Place(number, line.number, line.number + 1, line.start, line.end)
        try:
            yield Row(json_object(str(line.text)), place)
        except UsageError as error:
            raise RowError(path, error.message, error.fix, place) from None


def _read_text(path: Path, after: Place | None) -> Rows:
    return Rows((TEXT,), _text_rows(path, after or FIRST), textual=True)


def _text_rows(path: Path, after: Place) -> Iterator[Row]:
    for line in _whole_lines(path, after):
        place = Place(line.number, line.number, line.number + 1, line.start, line.end)
        yield Row({TEXT: str(line.text).rstrip("\r\n")}, place)


def _whole_lines(path: Path, after: Place) -> Iterator[Line]:
    """The lines behind `after`. Raises RowError for one that is no text."""
    with path.open("rb") as file:
        file.seek(after.end)
        for line in lines(file, after.next_line, after.end):
            if isinstance(line.text, UsageError):
                place = Place(after.number + 1, line.number, line.number + 1, line.start, line.end)
                raise RowError(path, line.text.message, line.text.fix, place)
            yield line


def _read_parquet(path: Path, after: Place | None) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RowError(path, "Parquet needs pyarrow.", "Run: pip install 'hfx[perf]'") from error

    def broken(error: Exception) -> RowError:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return RowError(path, f"it is no readable Parquet file: {reason}.", "Write it again, or give a CSV.")

    def rows(skipped: int) -> Iterator[Row]:
        number, groups = 0, list(range(file.metadata.num_row_groups))
        while groups and number + file.metadata.row_group(groups[0]).num_rows <= skipped:
            number += file.metadata.row_group(groups.pop(0)).num_rows
        try:
            for batch in file.iter_batches(batch_size=BATCH, row_groups=groups):
                for cells in batch.to_pylist():
                    number += 1
                    if number > skipped:
                        yield Row(cells, Place(number))
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise broken(error) from None

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise broken(error) from None
    return Rows(tuple(file.schema_arrow.names), rows(after.number if after else 0), textual=False)


READERS: Mapping[str, Callable[[Path, Place | None], Rows]] = {
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".txt": _read_text,
    ".parquet": _read_parquet,
}
