"""Reading the lines of a file as bytes and as text, and the objects of JSON lines."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from hfx.errors import UsageError
from hfx.strict_json import no_constant, without_duplicates

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

MAX_BYTES = 64 * 2**20  # in a line or cell; a longer line means a wrong file, and must not fill the memory
BLOCK = 2**20  # bytes that are hashed together
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Lines:
    r"""The lines of `file` from the byte `position` on, where line `number` + 1 begins. Only `\n` ends a line.

    Of a line that is longer than MAX_BYTES, only MAX_BYTES + 1 bytes are yielded. A byte order mark at the start of
    the file is not part of the first line. `position` is the offset after the line that was yielded last, and `number`
    the number of that line. Lines that begin at the byte `end` or later are not read. All bytes go into `digest`.
    """

    def __init__(
        self, file: BinaryIO, position: int = 0, number: int = 0, end: float = math.inf, digest: Hash | None = None
    ) -> None:
        self.file, self.position, self.number, self.end = file, position, number, end
        self.digest = digest if digest is not None else hashlib.sha256()
        self._undigested: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        readline, limit, undigested = self.file.readline, MAX_BYTES + 1, self._undigested
        room = BLOCK
        while self.position < self.end and (line := readline(limit)):
            undigested.append(line)
            size = len(line)
            if size == limit and not line.endswith(b"\n"):
                size += self._skip_line()
            if (room := room - size) < 0:
                self.flush()
                room = BLOCK
            if not self.position and line.startswith(BYTE_ORDER_MARK):
                line = line[len(BYTE_ORDER_MARK) :]
            self.position += size
            self.number += 1
            yield line

    def flush(self) -> None:
        """Update the digest with all bytes read so far."""
        self.digest.update(b"".join(self._undigested))
        self._undigested.clear()

    def _skip_line(self) -> int:
        self.flush()
        skipped = 0
        while rest := self.file.readline(BLOCK):
            self.digest.update(rest)
            skipped += len(rest)
            if rest.endswith(b"\n"):
                break
        return skipped


@dataclass(frozen=True)
class Line:
    """A line: its number from 1, and its text with its line end, or the error if it is not a text."""

    number: int
    text: str | UsageError


def lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of `file`, which stays open. Lines that are too long, not UTF-8, or hold a NUL are errors."""
    source = Lines(file)
    for content in source:
        yield Line(source.number, text_of(content))


def text_of(content: bytes, number: int = 0) -> str | UsageError:
    """Return the text of a line, or the error in it; its `number`, if given, is in the message."""
    if is_too_long(content):
        return UsageError(f"It is longer than {MAX_BYTES // 2**20} MiB.", "Is the input text, one request a line?")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        fix = "Convert it first, e.g. with iconv -f latin1 -t utf-8."
        return UsageError(f"It is not UTF-8 (byte {error.start + 1} of {_line(number)}).", fix)
    if "\0" in text:
        place = f"byte {content.index(0) + 1} of {_line(number)}"
        return UsageError(f"It holds a NUL ({place}).", "Is it a text file in UTF-8?")
    return text


def is_too_long(content: bytes) -> bool:
    """Return whether these are the first bytes of a line that is longer than MAX_BYTES."""
    return len(content) > MAX_BYTES and not content.endswith(b"\n")


def _line(number: int) -> str:
    return f"line {number}" if number else "the line"


def json_object(text: str) -> dict[str, Any]:
    """Parse the object of a JSON line. Raises UsageError for other values, NaN, and members given twice.

    The message does not have the place of the line.
    """
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _no_object("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _no_object(f"{error.msg} at character {error.pos + 1}") from None
    except UnicodeEncodeError:
        raise _no_object("it holds half a character (a surrogate without the other one)") from None
    except ValueError as error:
        raise _no_object(str(error)) from None
    if not isinstance(value, dict):
        raise _no_object(f"it is a {type(value).__name__}")
    return value


def _no_object(reason: str) -> UsageError:
    return UsageError(f"It is not a JSON object: {reason}.", 'Write one object per line, e.g. {"text_input": "Hello"}.')


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large")
    return value


# Created once, because json.loads with such arguments creates a decoder for each call, which takes longer than parsing
# a short object.
_DECODER = json.JSONDecoder(object_pairs_hook=without_duplicates, parse_float=_finite, parse_constant=no_constant)
