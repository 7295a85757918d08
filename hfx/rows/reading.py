"""`read_rows`: all rows of a file, of which none may be bad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from hfx.rows.chunks import columns_of, open_rows
from hfx.rows.row import Row, RowError
from hfx.rows.sources import Source, source_of


@dataclass(frozen=True)
class Rows:
    """A file: its columns (of JSON lines those of the first row), its rows, and whether all cells are str."""

    columns: tuple[str, ...]
    rows: Iterator[Row]
    textual: bool


def read_rows(path: Path) -> Rows:
    """The rows of `path`. Raises RowError for an empty file, and here or while they are read for one that is bad."""
    source = replace(source_of(str(path)), name=str(path))  # as it was given, in messages
    columns = columns_of(source)
    if not columns:
        next(_good_rows(source), None)  # raises what is wrong with the first
    if not source.size or not columns:
        raise RowError(path, "it is empty.", "Give a file with a row for each request.")
    return Rows(columns, _good_rows(source), textual=source.format in ("csv", "tsv", "text"))


def _good_rows(source: Source) -> Iterator[Row]:
    with closing(open_rows(source)) as file:
        for row in file.rows(None):
            if row.error is not None:
                raise row.error
            yield row
