"""Parsing an upload (multipart/form-data) while it arrives: fields stay in memory, and the file is passed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from hfx.front.refusals import Refusal

FIELD_BYTES = 1024
PARTS = 16  # the most parts of a form
NAME_LENGTH = 255  # characters of a file's name
BOUNDARY_BYTES = 70  # RFC 2046
FIX = "Send a form with purpose and file, as OpenAI's clients do."


class Form:
    """A parser that receives the body in pieces. It calls `write` with the content of the part named `file`.

    `fields` has the other parts as text, and `filename` the name of the file. Raises Refusal (415) for another content
    type.
    """

    def __init__(self, headers: Mapping[bytes, bytes], write: Callable[[bytes], None]) -> None:
        kind, options = parse_options_header(headers.get(b"content-type"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= BOUNDARY_BYTES:
            raise Refusal(415, f"The body is not multipart/form-data with a boundary. {FIX}")
        self.fields: dict[str, str] = {}
        self.filename = ""
        self._write = write
        self._parts = 0
        self._name = self._header = b""
        self._value = bytearray()
        self._disposition = bytearray()
        self._is_file = self._is_complete = False
        events = ("part_begin", "header_field", "header_value", "header_end", "headers_finished", "part_data")
        callbacks = {f"on_{name}": getattr(self, f"_{name}") for name in (*events, "part_end", "end")}
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    def feed(self, piece: bytes) -> None:
        """Parse a piece of the body. Raises Refusal (400)."""
        try:
            self._parser.write(piece)
        except MultipartParseError as error:
            raise _malformed(str(error)) from None

    def finish(self) -> None:
        """Raise Refusal (400) if the form is incomplete, or has no file."""
        if not self._is_complete:
            raise _malformed("it has no end")
        if not self.filename:
            raise Refusal(400, f"The form has no file. {FIX}", param="file")

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS:
            raise _malformed(f"it has more than {PARTS} parts")
        self._header, self._is_file = b"", False
        self._disposition.clear()
        self._value.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end].lower()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header == b"content-disposition":
            self._disposition += data[start:end]

    def _header_end(self) -> None:
        self._header = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(bytes(self._disposition))
        self._name = options.get(b"name", b"")
        self._is_file = self._name == b"file"
        if self._is_file:
            if self.filename:
                raise _malformed("it has two files")
            self.filename = _text(options.get(b"filename", b""))[:NAME_LENGTH] or "file"

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._write(data[start:end])
        else:
            self._value += data[start:end]
            if len(self._value) > FIELD_BYTES:
                raise _malformed(f"a field is larger than {FIELD_BYTES} bytes")

    def _part_end(self) -> None:
        if not self._is_file:
            self.fields[_text(self._name)] = _text(bytes(self._value))

    def _end(self) -> None:
        self._is_complete = True


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _malformed(reason: str) -> Refusal:
    return Refusal(400, f"The form can't be read: {reason.rstrip('.')}. {FIX}")
