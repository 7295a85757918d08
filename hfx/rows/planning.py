"""The chunks of a file of lines, cut in one pass that counts, checks and hashes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from hfx.rows.boundaries import DelimitedBoundaries, Irregular, JsonBoundaries, TextBoundaries
from hfx.rows.delimited import DELIMITERS, DelimitedRows
from hfx.rows.line_files import LineFile, readable
from hfx.rows.row import Chunk, Place, RowError
from hfx.rows.text import BLOCK, BYTE_ORDER_MARK, Lines

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

FEWEST_BAD_LINES = 20  # of a file that is refused as it is not UTF-8


def cut_lines(file: LineFile, rows: int) -> Iterator[Chunk]:
    """The chunks of `file`, of so many `rows` each. Raises RowError."""
    with readable(file.source):
        cutter = Cutter(file, rows)
        try:
            yield from cutter.by_boundaries()
        except Irregular:  # what is left, from the start of the chunk in progress
            yield from cutter.by_reader()
        cutter.encoding.finish()


class Cutter:
    """Cuts `file` into chunks of `rows` rows; `first`, `line` and `start` are those of the chunk in progress."""

    def __init__(self, file: LineFile, rows: int) -> None:
        self.file, self.rows = file, rows
        self.first, self.line, self.start = 1, file.number + 1, file.body
        self.encoding, self.looked = EncodingCheck(file.source.name), 0  # lines that it has seen

    def by_boundaries(self) -> Iterator[Chunk]:
        """The chunks. Raises Irregular."""
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
        """The chunks of a CSV behind the last one. Raises RowError."""
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
    """Refuses a file of which no line beyond ASCII is UTF-8, unless they are few: then their rows are at fault."""

    def __init__(self, name: str) -> None:
        self.name, self.is_utf8, self.bad, self.first = name, False, 0, 0
        self._is_whole = True  # whether the next block begins with a line

    def look(self, block: bytes, number: int) -> None:
        """Look at the lines of `block`, but not at those that it cuts apart; `number` lines are before it."""
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
        """Raises RowError."""
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
