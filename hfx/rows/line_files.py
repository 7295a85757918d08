"""Files of lines (CSV, TSV, JSON lines, text): reading their header, and the rows in a range of their bytes.

The standard library reads CSV and TSV, because pyarrow.csv loses a byte of a quoted line end (CRLF) where two of its
blocks meet (seen in 21.0.0 and 25.0.1), guesses types (007 becomes 7), and knows no line numbers.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from hfx.errors import UsageError
from hfx.rows.row import Chunk, Place, Row, RowError, check_names, input_changed
from hfx.rows.sources import BUFFER, Source
from hfx.rows.text import MAX_BYTES, Lines, is_too_long, json_object, text_of

DELIMITERS: Mapping[str, str] = {"csv": ",", "tsv": "\t"}
NUL = "\0"
DAMAGE = re.compile("[\0\ud800-\udfff]")  # in cells, a NUL or bytes that are not UTF-8
FIX = 'Quote fields that hold the separator, quotes or line ends ("…"), and double the quotes in them.'
TEXT = "text"  # the column of plain text
UTF16 = (b"\xff\xfe", b"\xfe\xff")


class LineFile:
    """An open file of lines.

    `header` has the columns; for JSON lines, these are the members of the first object. `body` is the offset of the
    first row in bytes, and `number` the number of lines before it. `digest` is the hash of the bytes before the rows.
    The hash of each chunk continues it, so that a changed header is noticed.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = source.open()
        self._position = -1  # the current position in the file, or -1 if it is unknown
        try:
            with readable(source):
                self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file that lines are read from."""
        self.file.close()

    def rows(self, columns: Collection[str] | None) -> Iterator[Row]:
        """Yield all rows. Raises RowError if they can't be told apart, and as `readable` does."""
        self.file.seek(self.body)
        with readable(self.source):
            yield from self._rows_of(Lines(self.file, self.body, self.number), columns, 0)

    def chunk(self, chunk: Chunk, columns: Collection[str] | None) -> Iterator[Row]:
        """Yield the rows of `chunk`. Raises InputChanged, also after the last row, and RowError as `readable` does."""
        lines = Lines(self.file, chunk.start, chunk.line - 1, chunk.end, self.digest.copy())
        rows = 0
        with readable(self.source):
            if self._position != chunk.start:
                self.file.seek(chunk.start)
            self._position = -1
            try:
                for rows, row in enumerate(self._rows_of(lines, columns, chunk.first - 1), 1):
                    if rows > chunk.rows:
                        raise input_changed(self.source.name)
                    yield row
            except RowError:  # the rows were readable when the chunk was cut
                raise input_changed(self.source.name) from None
            lines.flush()
        if (rows, lines.position, lines.digest.hexdigest()) != (chunk.rows, chunk.end, chunk.sha256):
            raise input_changed(self.source.name)
        self._position = chunk.end

    def verify(self, chunks: Iterable[Chunk]) -> None:
        """Raise InputChanged if the bytes of a chunk have changed, and RowError as `readable` does."""
        with readable(self.source):
            for chunk in chunks:
                digest, left = self.digest.copy(), chunk.end - chunk.start
                self.file.seek(chunk.start)
                while left and (content := self.file.read(min(left, BUFFER))):
                    digest.update(content)
                    left -= len(content)
                if digest.hexdigest() != chunk.sha256:
                    raise input_changed(self.source.name)

    def _read_header(self) -> None:
        name, format = self.source.name, self.source.format
        if self.file.read(2) in UTF16:
            raise RowError(name, "it is UTF-16, not UTF-8.", "Convert it first, e.g. with iconv -f utf-16 -t utf-8.")
        self.file.seek(0)
        lines = Lines(self.file)
        self.header: tuple[str, ...] = (TEXT,)
        if format in DELIMITERS:
            self.header = DelimitedRows(name, lines, DELIMITERS[format]).header()
        elif format == "jsonl":
            rows = json_rows(name, lines, None, 0)
            self.header = next((tuple(row.cells) for row in rows if row.error is None), ())
            lines = Lines(self.file)  # the lines that were read belong to the rows: there is no header
        lines.flush()
        self.digest, self.body, self.number = lines.digest, lines.position, lines.number

    def _rows_of(self, lines: Lines, columns: Collection[str] | None, number: int) -> Iterator[Row]:
        name, format = self.source.name, self.source.format
        if format == "jsonl":
            return json_rows(name, lines, columns, number)
        if format == "text":
            return text_rows(name, lines, number)
        return DelimitedRows(name, lines, DELIMITERS[format]).rows(self.header, columns, number)


@contextmanager
def readable(source: Source) -> Iterator[None]:
    """Raise RowError for a file that can't be read to its end."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error).rstrip(".")
        raise RowError(source.name, f"it is not a whole gzip file: {reason}.", "Compress it again.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RowError(source.name, f"it can't be read: {reason}.", "Is its disk or store reachable?") from error


class DelimitedRows:
    """The records of `lines`.

    An empty line is not a record, even if there is a single column: the csv module writes `""` for an empty cell.
    """

    def __init__(self, name: str, lines: Lines, delimiter: str) -> None:
        csv.field_size_limit(MAX_BYTES)  # documents are longer than csv's 128 KiB
        self.name, self.lines, self.delimiter = name, lines, delimiter
        # The damage in the last record; the code that reads it must reset it to None.
        self.damage: UsageError | None = None

    def header(self) -> tuple[str, ...]:
        """Return the cells of the next record. Raises RowError, also if a cell is there twice."""
        line, cells = next(self.records(), (0, []))
        place = Place(0, line)
        if not cells:
            raise RowError(self.name, "it is empty.", "Give a file with a header and a row for each request.")
        if self.damage is not None:
            raise RowError(self.name, self.damage.message, self.damage.fix, place)
        check_names(self.name, cells, place)
        return tuple(cells)

    def rows(self, header: tuple[str, ...], columns: Collection[str] | None, number: int) -> Iterator[Row]:
        """Yield the rows after row `number` with these `columns` (None: all of the `header`)."""
        width = len(header)
        kept = [(at, name) for at, name in enumerate(header) if columns is None or name in columns]
        for line, cells in self.records():
            number += 1
            if len(cells) != width:
                reason = f"Its number of fields is {len(cells)}, not {width}."
                yield Row({}, number, line, RowError(self.name, reason, FIX, Place(number, line)))
                self.damage = None
            elif self.damage is not None:
                sound = {name: cells[at] for at, name in kept if not DAMAGE.search(cells[at])}
                error = RowError(self.name, self.damage.message, self.damage.fix, Place(number, line))
                yield Row(sound, number, line, error)
                self.damage = None
            else:
                yield Row({name: cells[at] for at, name in kept}, number, line, textual=True)

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line and the cells of each record. Bytes that are not UTF-8 become lone surrogates."""
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


def json_rows(name: str, lines: Lines, columns: Collection[str] | None, number: int) -> Iterator[Row]:
    """Yield a row for each non-blank line after row `number`, with those of `columns` that it has (None: all)."""
    for content in lines:
        if not content.strip():
            continue
        number += 1
        text = text_of(content)
        try:
            cells = json_object(text) if isinstance(text, str) else {}
        except UsageError as error:
            text, cells = error, {}
        if isinstance(text, UsageError):
            yield _bad_row(name, number, lines.number, text)
        elif columns is None:
            yield Row(cells, number, lines.number)
        else:
            yield Row({column: cells[column] for column in columns if column in cells}, number, lines.number)


def text_rows(name: str, lines: Lines, number: int) -> Iterator[Row]:
    """Yield a row for each line after row `number`; an empty line is an empty text."""
    for content in lines:
        number += 1
        text = text_of(content)
        if isinstance(text, str):
            yield Row({TEXT: text.removesuffix("\n").removesuffix("\r")}, number, lines.number)
        else:
            yield _bad_row(name, number, lines.number, text)


def _bad_row(name: str, number: int, line: int, error: UsageError) -> Row:
    return Row({}, number, line, RowError(name, error.message, error.fix, Place(number, line)))
