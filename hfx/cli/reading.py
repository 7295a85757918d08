"""The input of `hfx infer`: words of the command line, lines of text, or JSON lines.

Entries are read one at a time. A line that can't be read is an entry, too, so that the other entries are answered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hfx.errors import UsageError
from hfx.rows import Line, json_object, lines

STANDARD_INPUT = "-"
ID = "id"  # of an object: not an input, but copied to its answer


@dataclass(frozen=True)
class Entry:
    """One request: a text, an object of input tensors, or the error of a line that is neither.

    `place` says where people find the entry (empty if there is only one); `id` is the user's name for it, or None.
    """

    place: str
    content: str | dict[str, Any] | UsageError
    id: Any = None


def words(texts: Sequence[str]) -> Iterator[Entry]:
    """Yield the texts of a command line."""
    for number, text in enumerate(texts, 1):
        yield Entry(f"Text {number}" if len(texts) > 1 else "", text)


def text_lines(file: BinaryIO) -> Iterator[Entry]:
    """Yield each line as a text; an empty line is an empty text."""
    for line in _lines(file):
        text = line.text
        yield Entry(f"Line {line.number}", text.rstrip("\n").removesuffix("\r") if isinstance(text, str) else text)


def json_lines(file: BinaryIO) -> Iterator[Entry]:
    """Yield each line as a JSON object; empty lines are skipped."""
    for line in _lines(file):
        if isinstance(line.text, UsageError):
            yield Entry(f"Line {line.number}", line.text)
        elif line.text.strip():
            yield _object(f"Line {line.number}", line.text)


def is_piped() -> bool:
    """Return whether the standard input is a pipe, socket or file, not a terminal or /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:  # it is closed
        return False


def opened(path: Path) -> BinaryIO:
    """Open the file at PATH, or the standard input for `-`. Raises UsageError if it can't be read.

    The reader closes the file. The standard input is opened anew: a thread that still waits for a line when the command
    ends then holds no lock that the interpreter needs.
    """
    standard = str(path) == STANDARD_INPUT
    try:
        return open(0 if standard else path, "rb", closefd=not standard)
    except OSError as error:
        what = "The standard input" if standard else f"The file {path}"
        raise UsageError(
            f"{what} can't be read: {error.strerror}.", "Give a file with --input, or pipe one in."
        ) from error


def _lines(file: BinaryIO) -> Iterator[Line]:
    with file:
        yield from lines(file)


def _object(place: str, line: str) -> Entry:
    try:
        value = json_object(line)
    except UsageError as error:
        return Entry(place, error)
    name = value.pop(ID, None)
    return Entry(place, value, name)
