"""Files of lines (CSV, TSV, JSON lines, text), opened: their header, and the rows of a range of their bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from hfx.rows.delimited import DELIMITERS, DelimitedRows
from hfx.rows.line_formats import TEXT, json_rows, text_rows
from hfx.rows.row import Chunk, Row, RowError, input_changed
from hfx.rows.sources import BUFFER, Source
from hfx.rows.text import Lines

UTF16 = (b"\xff\xfe", b"\xfe\xff")


class LineFile:
    """An open file of lines: its columns (`header`), and the byte and the number of lines before its rows.

    The columns of JSON lines are the members of the first object. `digest` is the hash of the bytes before the rows:
    those of chunks go on from it, so that a changed header is noticed.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = source.open()
        self._position = -1  # where the file stands, if that is known
        try:
            with readable(source):
                self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def rows(self, columns: Collection[str] | None) -> Iterator[Row]:
        """All rows. Raises RowError where they can't be told apart, and as `readable` does."""
        self.file.seek(self.body)
        with readable(self.source):
            yield from self._rows_of(Lines(self.file, self.body, self.number), columns, 0)

    def chunk(self, chunk: Chunk, columns: Collection[str] | None) -> Iterator[Row]:
        """The rows of `chunk`. Raises InputChanged, also behind the last one, and RowError as `readable` does."""
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
            except RowError:  # there was none when the chunk was cut
                raise input_changed(self.source.name) from None
            lines.flush()
        if (rows, lines.position, lines.digest.hexdigest()) != (chunk.rows, chunk.end, chunk.sha256):
            raise input_changed(self.source.name)
        self._position = chunk.end

    def verify(self, chunks: Iterable[Chunk]) -> None:
        """Raises InputChanged where the bytes of a chunk are others, and RowError as `readable` does."""
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
            lines = Lines(self.file)  # they are no header
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
    """Raises RowError for a file that can't be read to its end."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error).rstrip(".")
        raise RowError(source.name, f"it is no whole gzip file: {reason}.", "Compress it again.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RowError(source.name, f"it can't be read: {reason}.", "Is its disk or store reachable?") from error
