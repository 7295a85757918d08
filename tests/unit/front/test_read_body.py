"""Bodies are read piece by piece, decompressed and counted, and never beyond their limit."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from hfx.front.guard import Disconnected, read_body
from hfx.front.refusals import Refusal, overloaded

LIMIT = 1000
BODY = bytes(range(250)) * 4


def read(
    *pieces: bytes, encoding: bytes = b"", length: int | None = None, reserve: Callable[[int], None] = lambda size: None
) -> bytes:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    headers = {b"content-encoding": encoding} if encoding else {}
    headers |= {} if length is None else {b"content-length": b"%d" % length}
    return asyncio.run(read_body(receive, headers, LIMIT, reserve))


def status(*pieces: bytes, **options: Any) -> int:
    with pytest.raises(Refusal) as refused:
        read(*pieces, **options)
    return refused.value.status


def halves(content: bytes) -> tuple[bytes, bytes]:
    return content[: len(content) // 2], content[len(content) // 2 :]


@pytest.mark.parametrize(
    ("compress", "encoding"),
    [(bytes, b""), (bytes, b"identity"), (gzip.compress, b" GZip "), (zlib.compress, b"deflate"), (bytes, b" ")],
)
def test_a_body_is_read_up_to_its_limit_in_any_pieces(compress: Callable[[bytes], bytes], encoding: bytes) -> None:
    whole, longer = compress(BODY), compress(BODY + b"x")
    assert read(whole, encoding=encoding) == read(*halves(whole), encoding=encoding) == BODY
    assert status(longer, encoding=encoding) == status(*halves(longer), encoding=encoding) == 413


def test_a_length_above_the_limit_is_refused_before_any_piece_is_read() -> None:
    assert read(BODY, length=LIMIT) == BODY
    assert status(b"", length=LIMIT + 1) == 413


def test_a_compressed_body_is_not_expanded_beyond_its_limit() -> None:
    reserved: list[int] = []
    bomb = gzip.compress(b" " * 10**7)
    assert status(bomb, encoding=b"gzip", reserve=reserved.append) == 413
    assert status(gzip.compress(BODY), bomb, encoding=b"gzip") == 400  # the first stream has ended
    assert reserved == []


def test_the_expanded_size_of_each_piece_is_reserved_and_may_be_refused() -> None:
    reserved: list[int] = []
    compressor = zlib.compressobj()
    pieces = [compressor.compress(BODY[:600]) + compressor.flush(zlib.Z_SYNC_FLUSH), compressor.compress(BODY[600:])]
    assert read(*pieces[:1], pieces[1] + compressor.flush(), encoding=b"deflate", reserve=reserved.append) == BODY
    assert reserved == [600, 400]

    def refuse(size: int) -> None:
        raise overloaded("There is no memory left.")

    assert status(b"{}", reserve=refuse) == 503


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(BODY)[:-1], gzip.compress(BODY) + b"x", gzip.compress(BODY)[:-8] + b"12345678"],
)
def test_a_body_that_is_not_one_whole_stream_is_refused(content: bytes) -> None:
    assert status(content, encoding=b"gzip") == 400


def test_an_unknown_encoding_is_refused() -> None:
    assert status(b"{}", encoding=b"br") == status(b"{}", encoding=b"gzip, gzip") == 415


def test_a_caller_that_leaves_within_its_body_is_noticed() -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(Disconnected):
        asyncio.run(read_body(receive, {}, LIMIT, lambda size: None))
