"""Bodies of requests: read within bounds, decompressed, and checked before Triton's parser sees them.

Triton 2.51 walks JSON recursively (3,000,000 brackets are a SIGSEGV), expands gzip without a bound, and reads a body of
any size. The check here is linear and makes no objects: Triton's own parser, which is safe at this depth, reports
everything else that is wrong with a body.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hfx.front.refusals import Refusal

JSON_DEPTH = 64
BLOCK_BYTES = 1 << 16  # scanned at a time: nesting without end is refused at the first block
OPENING, CLOSING = b"[{", b"]}"
STRUCTURE = b'"' + OPENING + CLOSING
OTHERS = bytes(set(range(256)) - set(STRUCTURE))
STEPS = np.zeros(256, np.int8)  # by which a character changes the depth
STEPS[list(OPENING)], STEPS[list(CLOSING)] = 1, -1
HEAD_LENGTH = b"inference-header-content-length"
DIGITS = re.compile(rb"[0-9]{1,10}")
GZIP_OR_ZLIB = zlib.MAX_WBITS + 32

Receive = Callable[[], Awaitable[Any]]
Headers = Mapping[bytes, bytes]


class Disconnected(Exception):
    """The client closed its connection."""


async def read_body(receive: Receive, headers: Headers, limit: int, reserve: Callable[[int], None]) -> bytes:
    """The whole body, decompressed. `reserve` is called with the size of each piece and may refuse it.

    Raises Refusal (413 above `limit` bytes, 400 or 415 for an encoding that can't be read) and Disconnected.
    """
    if int(headers.get(b"content-length", b"0")) > limit:
        raise too_large(limit)
    pieces = []
    size = 0
    decoder = _Decoder(headers.get(b"content-encoding", b""))
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more = message["more_body"]
        piece = decoder.decode(message["body"], limit - size)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        reserve(len(piece))
        pieces.append(piece)
    decoder.finish()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def too_large(limit: int) -> Refusal:
    """The refusal of a body above `limit` bytes."""
    return Refusal(413, f"The body is larger than {limit} bytes. Send fewer texts in a request, or shorter ones.")


class _Decoder:
    """Undoes a Content-Encoding piece by piece, without making more bytes than asked for."""

    def __init__(self, encoding: bytes) -> None:
        encoding = encoding.strip().lower()
        if encoding not in (b"", b"identity", b"gzip", b"deflate"):
            raise Refusal(415, "This Content-Encoding is not known. Send gzip, deflate or none.")
        self._inflater = zlib.decompressobj(GZIP_OR_ZLIB) if encoding in (b"gzip", b"deflate") else None

    def decode(self, piece: bytes, room: int) -> bytes:
        """The content of `piece`; more than `room` bytes when it has more."""
        if self._inflater is None:
            return piece
        try:
            content = self._inflater.decompress(piece, room + 1)
        except zlib.error:
            raise _damaged() from None
        if self._inflater.unused_data:
            raise _damaged()
        return content

    def finish(self) -> None:
        """Raise Refusal when the compressed data has no end."""
        if self._inflater is not None and not self._inflater.eof:
            raise _damaged()


def _damaged() -> Refusal:
    return Refusal(400, "The body is not what its Content-Encoding says. Send one complete gzip or zlib stream.")


def check_body(body: bytes, head_length: bytes | None) -> None:
    """Raise Refusal (400) unless the JSON in `body` can be parsed without harm.

    `head_length` is the Inference-Header-Content-Length of a request with binary tensors: the JSON's bytes, which come
    first; 0 stands for a raw binary tensor without JSON.
    """
    if head_length is None:
        check_json(body)
        return
    if not DIGITS.fullmatch(head_length) or int(head_length) > len(body):
        raise Refusal(400, "Inference-Header-Content-Length is no length within the body. Send the JSON part's bytes.")
    check_json(body[: int(head_length)])


def check_json(text: bytes) -> None:
    """Raise Refusal (400) for JSON that is nested deeper than JSON_DEPTH or whose brackets or quotes don't match up."""
    if sum(text.count(bracket) for bracket in (b"[", b"{")) <= JSON_DEPTH:
        return  # as nearly all requests; whether they are closed is for Triton's parser to say
    # Escaped characters first, so that each quote that is left begins or ends a string.
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, OTHERS)
    depth, quotes = 0, 0
    for codes in _blocks(text):
        in_string = (np.cumsum(codes == ord('"'), dtype=np.uint8) + np.uint8(quotes)) & 1
        depths = np.cumsum(np.where(in_string, np.int8(0), STEPS[codes]), dtype=np.int32) + depth
        if depths.max() > JSON_DEPTH:
            raise Refusal(400, f"The JSON is nested deeper than {JSON_DEPTH} levels. Send tensors as flat lists.")
        if depths.min() < 0:
            raise _malformed()
        depth, quotes = int(depths[-1]), int(in_string[-1])
    if depth or quotes:
        raise _malformed()


def _blocks(text: bytes) -> Iterable[np.ndarray[Any, np.dtype[np.uint8]]]:
    codes = np.frombuffer(text, np.uint8)
    return (codes[start : start + BLOCK_BYTES] for start in range(0, len(codes), BLOCK_BYTES))


def _malformed() -> Refusal:
    return Refusal(400, "The JSON is malformed: its brackets or quotes don't match. Send one complete object.")
