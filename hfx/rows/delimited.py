"""Rows of CSV and TSV files.

By the standard library: pyarrow.csv loses a byte of a quoted line end (CRLF) where two of its blocks meet (seen in
21.0.0 and 25.0.1), guesses types (007 becomes 7), and knows no line numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping

from hfx.errors import UsageError
from hfx.rows.row import Place, Row, RowError, check_names
from hfx.rows.text import MAX_BYTES, Lines, is_too_long, text_of

DELIMITERS: Mapping[str, str] = {"csv": ",", "tsv": "\t"}
NUL = "\0"
DAMAGE = re.compile("[\0\ud800-\udfff]")  # what stands in cells for a NUL or for bytes that are no UTF-8
FIX = 'Quote fields that hold the separator, quotes or line ends ("…"), and double the quotes in them.'


class DelimitedRows:
    """The records of `lines`. An empty line is none, also under a single column: csv writes `""` for an empty cell."""

    def __init__(self, name: str, lines: Lines, delimiter: str) -> None:
        csv.field_size_limit(MAX_BYTES)  # documents are longer than csv's 128 KiB
        self.name, self.lines, self.delimiter = name, lines, delimiter
        self.damage: UsageError | None = None  # of the last record; its reader sets it back

    def header(self) -> tuple[str, ...]:
        """The cells of the next record, each once. Raises RowError."""
        line, cells = next(self.records(), (0, []))
        place = Place(0, line)
        if not cells:
            raise RowError(self.name, "it is empty.", "Give a file with a header and a row for each request.")
        if self.damage is not None:
            raise RowError(self.name, self.damage.message, self.damage.fix, place)
        check_names(self.name, cells, place)
        return tuple(cells)

    def rows(self, header: tuple[str, ...], columns: Collection[str] | None, number: int) -> Iterator[Row]:
        """The rows behind row `number`, of these `columns` (None: all of the `header`)."""
        width = len(header)
        kept = [(at, name) for at, name in enumerate(header) if columns is None or name in columns]
        for line, cells in self.records():
            number += 1
            if len(cells) != width:
                reason = f"{len(cells)} {'field' if len(cells) == 1 else 'fields'} under {width} columns."
                yield Row({}, number, line, RowError(self.name, reason, FIX, Place(number, line)))
                self.damage = None
            elif self.damage is not None:
                sound = {name: cells[at] for at, name in kept if not DAMAGE.search(cells[at])}
                error = RowError(self.name, self.damage.message, self.damage.fix, Place(number, line))
                yield Row(sound, number, line, error)
                self.damage = None
            else:
                yield Row({name: cells[at] for at, name in kept}, number, line)

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """The first line of each record, and its cells; bytes that are no UTF-8 stand in them as lone surrogates."""
        before = read = self.lines.number
        reader = csv.reader(self._texts(), delimiter=self.delimiter, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield read + 1, cells
                read = before + reader.line_num
        except csv.Error as error:
            raise RowError(self.name, f"{error}.", FIX, Place(0, read + 1)) from None

    def _texts(self) -> Iterator[str]:
        for content in self.lines:
            try:
                text = content.decode()
            except UnicodeDecodeError:
                text = NUL
            if NUL in text or len(content) > MAX_BYTES:
                text = self._damaged(content)
            yield text

    def _damaged(self, content: bytes) -> str:
        error = text_of(content, self.lines.number)
        if is_too_long(content) and isinstance(error, UsageError):
            raise RowError(self.name, error.message, error.fix, Place(0, self.lines.number))
        self.damage = self.damage or (error if isinstance(error, UsageError) else None)
        return content.decode(errors="surrogateescape")
