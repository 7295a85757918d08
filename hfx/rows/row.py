"""A row, its place in a file, a chunk of rows, and the errors of files and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hfx.errors import InputChanged, UsageError

# Creating a named tuple takes half the time of creating a frozen dataclass, and a third of the time of reading a short
# row.


class Place(NamedTuple):
    """The place of a row: its number in the file, from 1, and its first line (0 in Parquet, which has no lines)."""

    number: int
    line: int = 0


class RowError(UsageError):
    """An error in a file or in one of its rows, whose `place` and `column` are given if they are known.

    `reason` is the message without the file and the place.
    """

    def __init__(self, path: Path | str, reason: str, fix: str, place: Place | None = None, column: str = "") -> None:
        where = str(path)
        if place is not None:
            where += f", line {place.line}" if place.line else f", row {place.number}"
        if column:
            where += f", column {column!r}"
        super().__init__(f"{where}: {'it ' + reason[3:] if reason.startswith('It ') else reason}", fix)
        self.name, self.place, self.column = str(path), place, column
        self.reason = reason[:1].upper() + reason[1:]


class Row(NamedTuple):
    """The cells of a row by column, and the row's number and first line as in Place.

    A row with an `error` has only the cells that could be read. All cells of a `textual` row (CSV, TSV) are texts, and
    an empty cell is a missing value.
    """

    cells: Mapping[str, Any]
    number: int
    line: int = 0
    error: RowError | None = None
    textual: bool = False

    @property
    def place(self) -> Place:
        """The place of the row in its file."""
        return Place(self.number, self.line)


@dataclass(frozen=True)
class Chunk:
    """`rows` consecutive rows of one file; the number of the first row is `first`, counted from 1.

    The rows are in the bytes [`start`, `end`) of the uncompressed file; line number `line` begins at `start`. `sha256`
    is the hash of the header followed by these bytes. For Parquet, `line`, `start` and `end` are 0, and `sha256` is
    the hash of the whole file.
    """

    first: int
    rows: int
    line: int
    start: int
    end: int
    sha256: str


def check_names(name: str, columns: Sequence[str], place: Place | None = None) -> None:
    """Raise RowError if a file has the same column twice; `place` is the place of its header."""
    if repeated := [column for column, count in Counter(columns).items() if count > 1]:
        raise RowError(name, f"the column {repeated[0]!r} stands there twice.", "Rename one.", place)


def input_changed(name: str) -> InputChanged:
    """Return the error for the file `name`, which has changed since it was cut into chunks."""
    return InputChanged(f"{name}: it has changed since the job was planned.", "Restore the file, or start a new job.")
