"""The input of `hfx infer`: words of the command line, lines of text, or JSON lines.

Entries are read one at a time. What can't be read is an entry, too, so that the others are answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from hfx.errors import UsageError

STANDARD_INPUT = "-"
LONGEST_LINE = 64 * 2**20  # bytes; what is longer is no line but a wrong file, and must not fill the memory
ID = "id"  # of an object: no input, but what tells its answer from the others'


@dataclass(frozen=True)
class Entry:
    """One thing to ask: a text, an object of input tensors, or why it is neither.

    `place` is how people find it (empty where there is only one), `id` what the user calls it (None: nothing).
    """

    place: str
    content: str | dict[str, Any] | UsageError
    id: Any = None


def words(texts: Sequence[str]) -> Iterator[Entry]:
    """The texts of a command line."""
    for number, text in enumerate(texts, 1):
        yield Entry(f"Text {number}" if len(texts) > 1 else "", text)


def text_lines(file: BinaryIO) -> Iterator[Entry]:
    """Each line as a text; an empty line is an empty text."""
    for number, line in _lines(file):
        yield Entry(f"Line {number}", line)


def json_lines(file: BinaryIO) -> Iterator[Entry]:
    """Each line as an object; lines without anything are skipped."""
    for number, line in _lines(file):
        if isinstance(line, UsageError):
            yield Entry(f"Line {number}", line)
        elif line.strip():
            yield _object(f"Line {number}", line)


def opened(path: Path) -> BinaryIO:
    """The file at PATH, or the standard input for `-`. Raises UsageError where it can't be read.

    Whoever reads it closes it. The standard input is opened anew: a thread that still waits for a line when the command
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


def _lines(file: BinaryIO) -> Iterator[tuple[int, str | UsageError]]:
    with file:
        for number in count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                return
            yield number, _decoded(line) if _is_whole(line) else _too_long(file)


def _is_whole(line: bytes) -> bool:
    return len(line) <= LONGEST_LINE or line.endswith(b"\n")


def _too_long(file: BinaryIO) -> UsageError:
    _skip_line(file)
    return UsageError(f"It is longer than {LONGEST_LINE // 2**20} MiB.", "Is the input text, one request a line?")


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
        pass


def _decoded(line: bytes) -> str | UsageError:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        return UsageError(f"It is not UTF-8 (byte {error.start}).", "Convert it first, e.g. by iconv.")


def _object(place: str, line: str) -> Entry:
    try:
        value = json.loads(line, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        return Entry(place, _no_object("it is nested too deeply"))
    except json.JSONDecodeError as error:
        return Entry(place, _no_object(f"{error.msg} at character {error.pos + 1}"))
    except ValueError as error:
        return Entry(place, _no_object(str(error)))
    if not isinstance(value, dict):
        return Entry(place, _no_object(f"it is a {type(value).__name__}"))
    name = value.pop(ID, None)
    return Entry(place, value, name)


def _no_object(reason: str) -> UsageError:
    return UsageError(f"It is no JSON object: {reason}.", 'Write one a line, e.g. {"text_input": "Hello"}.')


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in it")
    return members


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")
