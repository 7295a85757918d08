"""Cut a file of lines into chunks, in one pass that counts, checks and hashes the rows.

numpy finds where rows end in a block of the file, ten times as fast as reading the cells. Each class of boundaries gets
the blocks in their order. Its method `ends` gets a block and the offsets of its line feeds, `newlines`, and returns the
offsets just after the rows that end in the block. After the last block, its method `finish` returns whether a row
without a line end is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hfx.rows.line_files import DELIMITERS, DelimitedRows, LineFile, readable
from hfx.rows.row import Chunk, Place, RowError
from hfx.rows.text import BLOCK, BYTE_ORDER_MARK, MAX_BYTES, Lines

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

Offsets = npt.NDArray[np.intp]
# A file with at least this many lines that are not UTF-8 is refused, unless it also has non-ASCII lines that are UTF-8.
FEWEST_BAD_LINES = 20


def cut_lines(file: LineFile, rows: int) -> Iterator[Chunk]:
    """Yield the chunks of `file` with up to `rows` rows each. Raises RowError."""
    with readable(file.source):
        cutter = Cutter(file, rows)
        try:
            yield from cutter.by_boundaries()
        except Irregular:  # continue from the start of the chunk in progress
            yield from cutter.by_reader()
        cutter.encoding.finish()


class Cutter:
    """Cuts `file` into chunks of `rows` rows; `first`, `line` and `start` belong to the chunk in progress."""

    def __init__(self, file: LineFile, rows: int) -> None:
        self.file, self.rows = file, rows
        self.first, self.line, self.start = 1, file.number + 1, file.body
        self.encoding, self.looked = EncodingCheck(file.source.name), 0  # lines that the check has seen

    def by_boundaries(self) -> Iterator[Chunk]:
        """Cut the file into chunks at the boundaries of rows. Raises Irregular."""
        boundaries, digest, count = self._boundaries(), self.file.digest.copy(), 0
        position, number = self._skip_mark(digest), self.file.number
        while block := self.file.file.read(BLOCK):
            newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            ends = boundaries.ends(block, newlines)
            self.encoding.look(block, number)
            cuts, done = ends[self.rows - count - 1 :: self.rows], 0
            for end, lines in zip(cuts.tolist(), np.searchsorted(newlines, cuts).tolist(), strict=True):
                digest.update(block[done:end])
                yield self._chunk(self.rows, number + lines, position + end, digest)
                digest, done = self.file.digest.copy(), end
            digest.update(block[done:])
            count = (count + len(ends)) % self.rows
            position, number = position + len(block), number + len(newlines)
            self.looked = number
        if count := count + boundaries.finish():
            yield self._chunk(count, number, position, digest)

    def by_reader(self) -> Iterator[Chunk]:
        """Yield the remaining chunks of a CSV file, found by csv.reader. Raises RowError."""
        self.file.file.seek(self.start)
        lines = Lines(self.file.file, self.start, self.line - 1, digest=self.file.digest.copy())
        records = self._records(lines)
        while count := sum(islice(records, self.rows)):
            lines.flush()
            yield self._chunk(count, lines.number, lines.position, lines.digest)
            lines.digest = self.file.digest.copy()

    def _records(self, lines: Lines) -> Iterator[int]:
        reader = DelimitedRows(self.file.source.name, lines, DELIMITERS[self.file.source.format])
        for line, cells in reader.records():
            if line <= self.looked:
                pass
            elif reader.damage is not None:
                self.encoding.add(line, is_utf8=False)
            elif not (self.encoding.is_utf8 or all(map(str.isascii, cells))):
                self.encoding.add(line, is_utf8=True)
            reader.damage = None
            yield 1

    def _boundaries(self) -> DelimitedBoundaries | JsonBoundaries | TextBoundaries:
        format = self.file.source.format
        if format in DELIMITERS:
            return DelimitedBoundaries(DELIMITERS[format])
        return JsonBoundaries() if format == "jsonl" else TextBoundaries()

    def _skip_mark(self, digest: Hash) -> int:
        self.file.file.seek(self.file.body)
        if self.file.body == 0 and self.file.file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
            digest.update(BYTE_ORDER_MARK)
            return len(BYTE_ORDER_MARK)
        self.file.file.seek(self.file.body)
        return self.file.body

    def _chunk(self, rows: int, lines: int, end: int, digest: Hash) -> Chunk:
        chunk = Chunk(self.first, rows, self.line, self.start, end, digest.hexdigest())
        self.first, self.line, self.start = self.first + rows, lines + 1, end
        return chunk


class EncodingCheck:
    """Refuses a file if none of its lines with non-ASCII bytes is UTF-8.

    If the file has fewer than FEWEST_BAD_LINES such lines, only their rows are bad.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_utf8, self.bad, self.first = name, False, 0, 0
        self._is_whole = True  # whether the next block begins with a line

    def look(self, block: bytes, number: int) -> None:
        """Check the lines that are complete in `block`; `number` lines are before it."""
        skipped, self._is_whole = 0 if self._is_whole else 1, block.endswith(b"\n")
        if self.is_utf8 or block.isascii():
            return
        for line, content in enumerate(block.split(b"\n")[:-1], number + 1):
            if line > number + skipped and not content.isascii():
                self.add(line, _is_utf8(content))

    def add(self, line: int, is_utf8: bool) -> None:
        """Count a line that is not ASCII."""
        self.is_utf8 |= is_utf8
        if not is_utf8:
            self.bad, self.first = self.bad + 1, self.first or line

    def finish(self) -> None:
        """Raise RowError if at least FEWEST_BAD_LINES lines were not UTF-8, and no line with non-ASCII bytes was."""
        if self.bad >= FEWEST_BAD_LINES and not self.is_utf8:
            reason = f"it is not UTF-8, and neither are {self.bad - 1} more lines."
            fix = "Convert it first, e.g. with iconv -f latin1 -t utf-8."
            raise RowError(self.name, reason, fix, Place(0, self.first))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


class Irregular(Exception):
    """The file has rows that only csv.reader can tell apart.

    Their cells have quotes within unquoted text, carriage returns alone, or a quote that does not end.
    """


class TextBoundaries:
    """The ends of rows in plain text, where each line is a row."""

    def __init__(self) -> None:
        self._open = False  # whether the last row continues after the block

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """Return the positions where rows end."""
        self._open = not block.endswith(b"\n")
        return newlines + 1

    def finish(self) -> bool:
        """Return whether a row is left."""
        return self._open


class JsonBoundaries:
    """The ends of rows in JSON lines, where each line that is not blank is a row."""

    def __init__(self) -> None:
        self._open = False  # whether the line in progress is not blank

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """Return the positions where rows end."""
        starts = np.concatenate(([0], newlines + 1))
        firsts = np.frombuffer(block + b"\n", np.uint8)[starts]
        is_row = np.ones(len(starts), bool)  # for each line, and for the bytes after the last line feed
        for at in np.flatnonzero(firsts <= ord(" ")).tolist():
            end = starts[at + 1] if at < len(newlines) else len(block)
            is_row[at] = bool(block[starts[at] : end].strip())
        is_row[0] |= self._open
        self._open = bool(is_row[-1])
        ends: Offsets = newlines[is_row[:-1]] + 1
        return ends

    def finish(self) -> bool:
        """Return whether a row is left."""
        return self._open


class DelimitedBoundaries:
    r"""The ends of records in CSV and TSV: a line feed ends a record if the number of quotes before it is even.

    csv.reader finds the same records as long as quotes are only around cells or, doubled, within them. For other quotes
    `Irregular` is raised. All these characters are ASCII, and in UTF-8 an ASCII byte is never part of another
    character.
    """

    def __init__(self, delimiter: str) -> None:
        self._before_quote = _table(f'{delimiter}\n"')
        self._after_quote = _table(f'{delimiter}\r\n"')
        self._line_end = _table("\r\n")
        self._last = b"\n"  # the last byte of the previous block
        self._inside = False  # whether the next byte is within quotes
        self._open = False  # whether the row in progress is not blank
        self._length = 0  # the length of the row in progress

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """Return the positions where rows end. Raises Irregular."""
        content = np.frombuffer(self._last + block, np.uint8)  # offsets in it are greater by 1
        quotes = np.flatnonzero(content[1:] == ord('"')) if b'"' in block else newlines[:0]
        self._check_quotes(content, quotes)
        if b"\r" in block or self._last == b"\r":
            self._check_returns(content, quotes)
        ends = newlines[(np.searchsorted(quotes, newlines) + self._inside) % 2 == 0] + 1
        rows: Offsets = ends[self._are_rows(content, ends)]
        self._inside ^= bool(len(quotes) % 2)
        self._last = block[-1:]
        return rows

    def finish(self) -> bool:
        """Return whether a row is left. Raises Irregular if its quotes are not closed."""
        if self._inside:
            raise Irregular
        return self._open

    def _check_quotes(self, content: npt.NDArray[np.uint8], quotes: Offsets) -> None:
        inside = int(self._inside)
        before = content[quotes[inside::2]]
        closing = quotes[1 - inside :: 2]
        after = content[closing[closing < len(content) - 2] + 2]
        continued = self._last != b'"' or self._inside or self._after_quote[content[1]]
        if not (continued and self._before_quote[before].all() and self._after_quote[after].all()):
            raise Irregular

    def _check_returns(self, content: npt.NDArray[np.uint8], quotes: Offsets) -> None:
        returns = np.flatnonzero(content[:-1] == ord("\r"))
        outside = (np.searchsorted(quotes, returns - 1) + self._inside) % 2 == 0
        if not self._line_end[content[returns[outside] + 1]].all():
            raise Irregular

    def _are_rows(self, content: npt.NDArray[np.uint8], ends: Offsets) -> npt.NDArray[np.bool_]:
        """For each record whether it is a row: an empty line, which begins with a line end, is not."""
        starts = np.concatenate(([0], ends[ends < len(content) - 1]))
        is_row: npt.NDArray[np.bool_] = ~self._line_end[content[starts + 1]]
        is_row[0] |= self._open
        self._length += int(ends[0]) if len(ends) else len(content) - 1
        if self._length > MAX_BYTES:
            raise Irregular
        if len(ends):
            self._length = len(content) - 1 - int(ends[-1])
        self._open = bool(is_row[-1]) and len(starts) > len(ends)
        return is_row[: len(ends)]


def _table(characters: str) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[list(characters.encode())] = True
    return table
