"""Chunks of consecutive rows of one file. One pass cuts a file into chunks, which can be read in any order.

`read_rows` reads all rows of a file, and raises an error at the first bad row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from hfx.rows.line_files import DELIMITERS, LineFile
from hfx.rows.parquet import ParquetFile
from hfx.rows.row import Chunk, Place, Row, RowError
from hfx.rows.sources import Source, source_of


def cut(source: Source, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    """Yield the chunks of `source` with up to `rows` rows each; nothing for a file without rows.

    One pass cuts the file and checks it. Raises RowError for a file that lacks one of the `columns`, and for a file
    whose rows can't be told apart.
    """
    with closing(open_rows(source)) as file:
        if not file.header:  # JSON lines without an object
            if (first := next(file.rows(()), None)) is None:
                return
            nothing = RowError(source.name, "the object is empty.", 'Write {"column": …} a line.', first.place)
            raise first.error or nothing
        missing = [name for name in columns if name not in file.header]
        if missing:
            reason = f"it has no column {missing[0]!r}; its columns are {', '.join(file.header) or 'none'}."
            place = Place(0, 1) if isinstance(file, LineFile) else None
            fix = "Name the column that is to be read: --column COLUMN."
            if source.format in DELIMITERS:
                fix += " If the first line is a row, the file has no header: write one above it, else it is not read."
            raise RowError(source.name, reason, fix, place)
        from hfx.rows.planning import cut_lines  # it imports numpy, which would delay every command

        yield from cut_lines(file, rows) if isinstance(file, LineFile) else _cut_parquet(file, columns, rows)


def _cut_parquet(file: ParquetFile, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    file.check(columns)
    digest = file.digest()
    for first in range(0, file.count, rows):
        yield Chunk(first + 1, min(rows, file.count - first), 0, 0, 0, digest)


class ChunkReader:
    """A reader of chunks, which gives those of `columns` (None: all) that a file has.

    The last file stays open, so that chunks that are read in their order need one pass over a file.
    """

    def __init__(self, columns: Collection[str] | None = None) -> None:
        self.columns = columns
        self._file: LineFile | ParquetFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def rows(self, source: Source, chunk: Chunk) -> Iterator[Row]:
        """Yield the rows of `chunk`; a bad row has an `error`.

        Raises InputChanged if the file has changed since it was cut, at the latest after the last row. Rows must
        therefore not be used before the iterator ends. Raises RowError if the file can't be read.
        """
        if self._file is None or self._file.source != source:
            self.close()
            self._file = open_rows(source)
            if isinstance(self._file, ParquetFile) and source_of(source.name, source.format) != source:
                self._file.verify([chunk])
        yield from self._file.chunk(chunk, self.columns)


def verify(source: Source, chunks: Iterable[Chunk]) -> None:
    """Read the bytes of `chunks` of `source`. Raises InputChanged if they have changed since the file was cut."""
    with closing(open_rows(source)) as file:
        file.verify(chunks)


def columns_of(source: Source) -> tuple[str, ...]:
    """Return the columns of a file. The columns of JSON lines are the members of the first object."""
    with closing(open_rows(source)) as file:
        return file.header


def open_rows(source: Source) -> LineFile | ParquetFile:
    """Open the file. Raises RowError for a file that has no columns, or has the same column twice."""
    return ParquetFile(source) if source.format == "parquet" else LineFile(source)


@dataclass(frozen=True)
class Rows:
    """A file: its columns (for JSON lines, the columns of the first row), its rows, and whether all cells are str."""

    columns: tuple[str, ...]
    rows: Iterator[Row]
    textual: bool


def read_rows(path: Path) -> Rows:
    """Open the file `path`. Raises RowError for an empty file; for a bad row, here or while the rows are read."""
    source = replace(source_of(str(path)), name=str(path))  # messages name the path as it was given
    columns = columns_of(source)
    if not columns:
        next(_good_rows(source), None)  # raises the error of the first row
    if not source.size or not columns:
        raise RowError(path, "it is empty.", "Give a file with a row for each request.")
    return Rows(columns, _good_rows(source), textual=source.format in ("csv", "tsv", "text"))


def _good_rows(source: Source) -> Iterator[Row]:
    with closing(open_rows(source)) as file:
        for row in file.rows(None):
            if row.error is not None:
                raise row.error
            yield row
