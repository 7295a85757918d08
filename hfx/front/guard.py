"""Reads the bodies of requests within limits, decompresses them, and checks them before Triton's parser sees them.

Triton 2.51 walks JSON recursively (3,000,000 brackets are a SIGSEGV), expands gzip without a limit, and reads a body of
any size. The check in this module takes linear time and keeps no objects. The parser that reads the body finds all
other errors.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hfx.front.refusals import Refusal, invalid
from hfx.names import CANCEL_REQUEST

JSON_DEPTH = 64
# The limit on brackets, commas and colons outside of strings. Parsing 100,000 of them takes 4 to 20 ms, in which the
# interpreter does nothing else, and up to 8 MB (Zen 4). A body of 16 MiB can have 16 million.
JSON_MARKS = 200_000
MARK_BYTES = 80  # of memory for each mark, once it is parsed
FEW_MARKS = 1024
BLOCK_BYTES = 1 << 16  # scanned at a time, so that endless nesting is refused at the first block
OPENING, CLOSING = b"[{", b"]}"
MARKS = OPENING + b",:"
STRUCTURE = b'"' + CLOSING + MARKS
OTHERS = bytes(set(range(256)) - set(STRUCTURE))
STEPS = np.zeros(256, np.int8)  # the change of the depth at each character
STEPS[list(OPENING)], STEPS[list(CLOSING)] = 1, -1
IS_MARK = np.zeros(256, np.bool_)
IS_MARK[list(MARKS)] = True
HEAD_LENGTH = b"inference-header-content-length"
DIGITS = re.compile(rb"[0-9]{1,10}")
GZIP_OR_ZLIB = zlib.MAX_WBITS + 32
# The ways to name `cancel_request` as a field, a parameter or a tensor. Triton reads a name up to its first NUL.
SPACE = "[ \t\r\n]*"
NAMED = (
    re.compile(rf'"{CANCEL_REQUEST}(?:"{SPACE}:|\0|\\u0000)'),
    re.compile(rf'"name"{SPACE}:{SPACE}"{CANCEL_REQUEST}"'),
)
ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[67][0-9a-fA-F])")

Receive = Callable[[], Awaitable[Any]]
Headers = Mapping[bytes, bytes]


class Disconnected(Exception):
    """The client closed its connection."""


async def read_body(receive: Receive, headers: Headers, limit: int, reserve: Callable[[int], None]) -> bytes:
    """Return the whole body, decompressed. `reserve` is called with the size of each piece and may refuse it.

    Raises Refusal (413 above `limit` bytes, 400 or 415 for an encoding that can't be read) and Disconnected.
    """
    if int(headers.get(b"content-length", b"0")) > limit:
        raise too_large(limit)
    pieces = []
    size = 0
    inflater = _inflater(headers.get(b"content-encoding", b"").strip().lower())
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more = message["more_body"]
        piece = message["body"] if inflater is None else _inflated(inflater, message["body"], limit - size)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        reserve(len(piece))
        pieces.append(piece)
    if inflater is not None and not inflater.eof:
        raise _damaged()
    return b"".join(pieces)  # without a copy if there is one


def too_large(limit: int) -> Refusal:
    """Return the refusal of a body above `limit` bytes."""
    return Refusal(413, f"The body is larger than {limit} bytes. Send fewer texts in a request, or shorter ones.")


def _inflater(encoding: bytes) -> zlib._Decompress | None:
    """Return what decompresses a Content-Encoding, or None if there is nothing to decompress. Raises Refusal (415)."""
    if encoding not in (b"", b"identity", b"gzip", b"deflate"):
        raise Refusal(415, "This Content-Encoding is not known. Send gzip, deflate or none.")
    return zlib.decompressobj(GZIP_OR_ZLIB) if encoding in (b"gzip", b"deflate") else None


def _inflated(inflater: zlib._Decompress, piece: bytes, room: int) -> bytes:
    """Return the content of `piece`, of which at most `room` bytes and one more are expanded. Raises Refusal (400)."""
    try:
        content = inflater.decompress(piece, room + 1)
    except zlib.error:
        raise _damaged() from None
    if inflater.unused_data:
        raise _damaged()
    return content


def _damaged() -> Refusal:
    return invalid("The body is not what its Content-Encoding says. Send one complete gzip or zlib stream.")


def json_length(head_length: bytes, body: bytes) -> int:
    """Return the length of the JSON before the binary tensors in `body`, from Inference-Header-Content-Length.

    The length is 0 for a raw binary tensor without JSON. Raises Refusal (400).
    """
    if not DIGITS.fullmatch(head_length) or int(head_length) > len(body):
        raise invalid("Inference-Header-Content-Length is not a length within the body. Send the JSON part's bytes.")
    return int(head_length)


def check_json(text: bytes) -> int:
    """Return the maximum number of bytes that `text` takes in memory once it is parsed.

    Raises Refusal: 400 if the JSON is not UTF-8, is nested deeper than JSON_DEPTH, or has brackets or quotes that don't
    match up; 413 if it has more than JSON_MARKS marks.
    """
    is_ascii = text.isascii()
    if not is_ascii:  # parameters and request ids that are not UTF-8 can end Triton 2.51, in its Python backend
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"The body is not JSON: {error}. Send one complete JSON object in UTF-8.") from None
    size = len(text) * (1 if is_ascii else 4)  # Python stores 4 bytes per character if one character needs them
    if len(text) <= BLOCK_BYTES:
        brackets, separators = (sum(map(text.count, marks)) for marks in ((b"[", b"{"), (b",", b":")))
        if brackets <= JSON_DEPTH and brackets + separators <= FEW_MARKS:
            return size  # nearly all requests end here; the parser finds brackets that are not closed
    return size + _marks(text) * MARK_BYTES


def _marks(text: bytes) -> int:
    """Return the number of marks outside of strings. Raises Refusal as `check_json` does."""
    depth = quotes = marks = 0
    for codes in _blocks(text):
        in_string = (np.cumsum(codes == ord('"'), dtype=np.uint8) + np.uint8(quotes)) & 1
        depths = np.cumsum(np.where(in_string, np.int8(0), STEPS[codes]), dtype=np.int32) + depth
        marks += int(np.count_nonzero(IS_MARK[codes] & (in_string == 0)))
        if marks > JSON_MARKS:
            message = f"The JSON has more than {JSON_MARKS} values. Send fewer in a request, or tensors in binary."
            raise Refusal(413, message)
        if depths.max() > JSON_DEPTH:
            raise invalid(f"The JSON is nested deeper than {JSON_DEPTH} levels. Send tensors as flat lists.")
        if depths.min() < 0:
            raise _malformed()
        depth, quotes = int(depths[-1]), int(in_string[-1])
    if depth or quotes:
        raise _malformed()
    return marks


def _blocks(text: bytes) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Yield the codes of brackets, separators, and quotes that begin or end a string, block by block."""
    start = 0
    while start < len(text):
        block = text[start : start + BLOCK_BYTES]
        start += len(block)
        if (len(block) - len(block.rstrip(b"\\"))) % 2:  # the block ends within an escape, whose rest is left out
            start += 1
        block = block.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, OTHERS)
        if block:
            yield np.frombuffer(block, np.uint8)


def _malformed() -> Refusal:
    return invalid("The JSON is malformed: its brackets or quotes don't match. Send one complete object.")


def refuse_cancellation(text: bytes) -> None:
    """Raise Refusal (400) if the JSON in `text` names the tensor, field or parameter `cancel_request`.

    With `cancel_request`, a caller could give the id of any other request, which the engine would then end. So callers
    must not send it. The text is searched, not parsed. This takes 10 ms for 16 MiB, and up to 0.2 s if letters are
    escaped, which no encoder does.
    """
    is_escaped = ESCAPED_LETTER.search(text) is not None
    if not is_escaped and CANCEL_REQUEST.encode() not in text:
        return
    try:
        plain = text.decode("unicode_escape" if is_escaped else "latin-1")
    except UnicodeDecodeError:  # the text is not JSON, because Python knows all of JSON's escapes
        return
    if any(pattern.search(plain) for pattern in NAMED):
        raise invalid(f"{CANCEL_REQUEST} is closed to callers. Close the connection of a request to cancel it.")
