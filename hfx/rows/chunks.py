"""Chunks: consecutive rows of one file, cut in one pass over it, and read again alone or one after the other.

`read_rows` reads all rows of a file, of which none may be bad.
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
    """The chunks of `source`, of so many `rows` each, from one pass that checks the file; none where it has no rows.

    Raises RowError for a file without one of these `columns`, and for one whose rows can't be told apart.
    """
    with closing(open_rows(source)) as file:
        if not file.header:  # of JSON lines: there is no object
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
        from hfx.rows.planning import cut_lines  # it loads numpy, which every command would wait for

        yield from cut_lines(file, rows) if isinstance(file, LineFile) else _cut_parquet(file, columns, rows)


def _cut_parquet(file: ParquetFile, columns: Collection[str], rows: int) -> Iterator[Chunk]:
    file.check(columns)
    digest = file.digest()
    for first in range(0, file.count, rows):
        yield Chunk(first + 1, min(rows, file.count - first), 0, 0, 0, digest)


class ChunkReader:
    """The rows of chunks: of these `columns` (None: all), those of them that a file has.

    The last file stays open, so that the chunks of a file in their order are read in one pass over it.
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
        """The rows of `chunk`; those that are bad have an `error`.

        Raises InputChanged, behind the last row at the latest, where the file is not what it was when it was cut: no
        row counts before this ends. Raises RowError where the file can't be read.
        """
        if self._file is None or self._file.source != source:
            self.close()
            self._file = open_rows(source)
            if isinstance(self._file, ParquetFile) and source_of(source.name, source.format) != source:
                self._file.verify([chunk])
        yield from self._file.chunk(chunk, self.columns)


def verify(source: Source, chunks: Iterable[Chunk]) -> None:
    """Read the bytes of `chunks` of `source`. Raises InputChanged where they are others than those that were cut."""
    with closing(open_rows(source)) as file:
        file.verify(chunks)


def columns_of(source: Source) -> tuple[str, ...]:
    """The columns of a file: of JSON lines the members of its first object."""
    with closing(open_rows(source)) as file:
        return file.header


def open_rows(source: Source) -> LineFile | ParquetFile:
    """The file, opened. Raises RowError for one that has no columns, or has one twice."""
    return ParquetFile(source) if source.format == "parquet" else LineFile(source)


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
