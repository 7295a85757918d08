"""A table as a value, and its forms: lines of a terminal, Markdown, and plain data for pages and JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head. The first `words` columns are words (left), the rest numbers (right).

    `notes` stand under it: what was not run, what a figure does not say.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it has anything to say."""
        return bool(self.rows or self.notes)


def to_lines(table: Table) -> list[str]:
    """TABLE for a terminal: title, aligned rows, notes; nothing of an empty one."""
    if not table:
        return []
    lines = [table.title] if table.title else []
    if table.rows:
        cells = [table.columns, *table.rows]
        widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
        lines += [_line(row, widths, table.words) for row in cells]
    return [*lines, *(f"  {note}" for note in table.notes)]


def to_markdown(table: Table) -> str:
    """TABLE as Markdown, without its title; a cell's own bars, brackets and line breaks do no harm."""
    lines = []
    if table.rows:
        rules = ["---" if index < table.words else "---:" for index in range(len(table.columns))]
        lines = [_row(table.columns), "|" + "|".join(rules) + "|", *map(_row, table.rows)]
    if table.notes:
        lines += [*([""] if lines else []), *(f"- {_escaped(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n" if lines else ""


def to_value(table: Table) -> dict[str, object]:
    """TABLE for programs: its cells as they are shown."""
    return {"title": table.title, "columns": [*table.columns], "rows": [[*row] for row in table.rows]}


def without_empty_columns(columns: Sequence[str], rows: Sequence[Sequence[str]], keep: int, nothing: str) -> Table:
    """A Table of those columns after the first KEEP that say more than NOTHING in some row."""
    wanted = [
        index for index in range(len(columns)) if index < keep or any(row[index] not in ("", nothing) for row in rows)
    ]
    return Table(
        "",
        tuple(columns[index] for index in wanted),
        tuple(tuple(row[index] for index in wanted) for row in rows),
        keep,
    )


def _line(row: Sequence[str], widths: Sequence[int], words: int) -> str:
    padded = [
        cell + " " * (width - _width(cell)) if index < words else " " * (width - _width(cell)) + cell
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """The cells that TEXT takes on a terminal: East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    flat = " ".join(text.split())
    for character in "\\|<[`*_":
        flat = flat.replace(character, f"\\{character}")
    return flat
