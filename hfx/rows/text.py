"""Lines of a file as text, with their numbers and byte offsets, and objects of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from hfx.errors import UsageError

MAX_BYTES = 64 * 2**20  # of a line or cell; more is a wrong file, and must not fill the memory


@dataclass(frozen=True)
class Line:
    """A line: its number from 1, its bytes [`start`, `end`) and its text with its line end, or why it is none."""

    number: int
    start: int
    end: int
    text: str | UsageError


def lines(file: BinaryIO, number: int = 1, start: int = 0) -> Iterator[Line]:
    """The lines of `file`, which stands at the byte `start`, at the beginning of line `number`; it is not closed.

    A byte order mark at the start of the file is no text. Lines that are too long, no UTF-8, or hold a NUL are errors.
    """
    while content := file.readline(MAX_BYTES + 1):
        end = start + len(content)
        if len(content) > MAX_BYTES and not content.endswith(b"\n"):
            end += _skip_line(file)
            yield Line(number, start, end, _too_long())
        else:
            yield Line(number, start, end, _text(content, "utf-8-sig" if start == 0 else "utf-8"))
        number, start = number + 1, end


def json_object(text: str) -> dict[str, Any]:
    """The object of a JSON line. Raises UsageError without a place: for other values, NaN, and members given twice."""
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise _no_object("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _no_object(f"{error.msg} at character {error.pos + 1}") from None
    except ValueError as error:
        raise _no_object(str(error)) from None
    if not isinstance(value, dict):
        raise _no_object(f"it is a {type(value).__name__}")
    return value


def _text(content: bytes, encoding: str) -> str | UsageError:
    if 0 in content:
        return UsageError(f"It holds a NUL (byte {content.index(0) + 1} of the line).", "Is it a text file in UTF-8?")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        return UsageError(
            f"It is not UTF-8 (byte {error.start + 1} of the line).",
            "Convert it first, e.g. with iconv -f latin1 -t utf-8.",
        )


def _too_long() -> UsageError:
    return UsageError(f"It is longer than {MAX_BYTES // 2**20} MiB.", "Is the input text, one request a line?")


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while rest := file.readline(MAX_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    return skipped


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
