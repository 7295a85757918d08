"""Where rows end in the blocks of a file, found by numpy: ten times as fast as by reading the cells.

Each class is given the blocks of a file in their order. `ends` are the offsets behind the rows that end in a block,
whose line feeds are at `newlines`; `finish` says behind the last block whether a row without a line end is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hfx.rows.text import MAX_BYTES

Offsets = npt.NDArray[np.intp]


class Irregular(Exception):
    """Rows that only csv.reader tells apart: quotes within unquoted cells, lone returns, a quote that does not end."""


class TextBoundaries:
    """Each line is a row."""

    def __init__(self) -> None:
        self._open = False  # whether the last row goes on behind the block

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """The ends of rows."""
        self._open = not block.endswith(b"\n")
        return newlines + 1

    def finish(self) -> bool:
        """Whether a row is left."""
        return self._open


class JsonBoundaries:
    """Each line that is not blank is a row."""

    def __init__(self) -> None:
        self._open = False  # whether the line in progress is not blank

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """The ends of rows."""
        starts = np.concatenate(([0], newlines + 1))
        firsts = np.frombuffer(block + b"\n", np.uint8)[starts]
        is_row = np.ones(len(starts), bool)  # of each line, and of what is behind the last one
        for at in np.flatnonzero(firsts <= ord(" ")).tolist():
            end = starts[at + 1] if at < len(newlines) else len(block)
            is_row[at] = bool(block[starts[at] : end].strip())
        is_row[0] |= self._open
        self._open = bool(is_row[-1])
        ends: Offsets = newlines[is_row[:-1]] + 1
        return ends

    def finish(self) -> bool:
        """Whether a row is left."""
        return self._open


class DelimitedBoundaries:
    r"""Records as csv.reader finds them: a line feed ends one if the number of quotes before it is even.

    That holds as long as quotes stand around cells and, doubled, in them; `Irregular` is raised for others. All these
    characters are ASCII, which in UTF-8 is never a part of another one.
    """

    def __init__(self, delimiter: str) -> None:
        self._before_quote = _table(f'{delimiter}\n"')
        self._after_quote = _table(f'{delimiter}\r\n"')
        self._line_end = _table("\r\n")
        self._last = b"\n"  # byte of the block before
        self._inside = False  # whether it is within quotes
        self._open = False  # whether the row in progress is not blank
        self._length = 0  # of the row in progress

    def ends(self, block: bytes, newlines: Offsets) -> Offsets:
        """The ends of rows. Raises Irregular."""
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
        """Whether a row is left. Raises Irregular where its quotes are open."""
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
        """Which records are no empty lines: those that do not begin with a line end."""
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
