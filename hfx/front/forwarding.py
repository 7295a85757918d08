"""Requests in Triton's own protocol are forwarded, and the answers passed back piece by piece."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from hfx.front.guard import HEAD_LENGTH
from hfx.front.refusals import RETRY, Header, Refusal, refusal_label
from hfx.front.request import ClientRequest
from hfx.front.response import Response
from hfx.front.upstream import LOST, UpstreamConnection, UpstreamLost

# What Triton reads of a request's headers. Content-Type is not among them: it parses a form's body on its stack.
FORWARDED = {b"accept-encoding"}
CLOSE: Header = (b"connection", b"close")
# Triton 2.51 answers malformed JSON, and JSON of another form, by 500.
UNPARSED = re.compile(
    rb'\{"error":"(?:failed to parse the request JSON buffer|Unable to parse|attempt to |parameter key )'
)
REASON = re.compile(rb"\[hfx:([A-Z_]+)\]")
REASON_BYTES = 300
Reword = Callable[[bytes], Awaitable[bytes]]


def forwarded_headers(request: ClientRequest) -> list[Header]:
    """The headers that are sent to Triton. An infer request has JSON of `json_size` bytes before its tensors."""
    headers = [(name, value) for name, value in request.headers.items() if name in FORWARDED]
    headers += request.trace.headers
    if request.endpoint == b"infer":
        headers.append((HEAD_LENGTH, b"%d" % request.json_size))
    if request.endpoint == b"generate_stream":
        headers.append(CLOSE)  # until its connection ends, Triton 2.51 holds the request and its model
    return headers


async def pass_on(
    sent: AbstractAsyncContextManager[UpstreamConnection],
    response: Response,
    end: bytes = b"",
    reword: Reword | None = None,
) -> None:
    """Pass the answer to a request that was sent on to the client, with `end` after it. `reword` rewrites errors.

    Raises Refusal (502) if Triton ends before it answers, and UpstreamLost if it ends within its answer.
    """
    try:
        async with sent as connection:
            await pass_back(connection, response, end, reword)
    except UpstreamLost:
        if response.status:
            raise
        raise Refusal(502, f"{LOST} Send the request again.", [RETRY]) from None


async def pass_back(
    connection: UpstreamConnection, response: Response, end: bytes = b"", reword: Reword | None = None
) -> None:
    """Pass the answer on `connection` back to the client, with `end` after it. Raises UpstreamLost."""
    piece = await connection.read()
    status = 400 if connection.status == 500 and UNPARSED.match(piece) else connection.status
    if status >= 400:
        given = REASON.search(piece[:REASON_BYTES])
        response.refusal = refusal_label(status, given[1].decode() if given else "")
    headers = [header for header in connection.headers if not (end and header[0] == b"content-length")]
    headers += [RETRY] if status == 503 else []  # of a model that has too much to do
    if reword is not None and status == 400 and connection.is_read:
        piece = await reword(piece)
        headers = [header for header in headers if header[0] != b"content-length"]
        headers.append((b"content-length", b"%d" % len(piece)))
    await response.start(status, headers)
    await response.body(piece, more=bool(end) or not connection.is_read)
    while not connection.is_read:
        piece = await connection.read()
        await response.body(piece, more=bool(end) or not connection.is_read)
    if end:
        await response.body(end, more=False)
