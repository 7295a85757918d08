"""Rows of JSON lines and of plain text."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hfx.errors import UsageError
from hfx.rows.row import Place, Row, RowError
from hfx.rows.text import Lines, json_object, text_of

TEXT = "text"  # the column of plain text


def json_rows(name: str, lines: Lines, columns: Collection[str] | None, number: int) -> Iterator[Row]:
    """A row for each line behind row `number` that is not blank, with those `columns` that it has (None: all)."""
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
    """A row for each line behind row `number`; an empty line is an empty text."""
    for content in lines:
        number += 1
        text = text_of(content)
        if isinstance(text, str):
            yield Row({TEXT: text.removesuffix("\n").removesuffix("\r")}, number, lines.number)
        else:
            yield _bad_row(name, number, lines.number, text)


def _bad_row(name: str, number: int, line: int, error: UsageError) -> Row:
    return Row({}, number, line, RowError(name, error.message, error.fix, Place(number, line)))
