"""Forwards requests in Triton's own protocol, and passes the answers back piece by piece."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from hfx.front.guard import HEAD_LENGTH
from hfx.front.refusals import RETRY, Header, Refusal, refusal_label
from hfx.front.request import ClientRequest
from hfx.front.response import Response
from hfx.front.upstream import LOST, UpstreamConnection, UpstreamLost
from hfx.python_backends.errors import CONTEXT_TOO_LONG, QUEUE_FULL

# The client's headers that are sent to Triton. Content-Type is not, because Triton parses a form's body on its stack.
FORWARDED = {b"accept-encoding"}
CLOSE: Header = (b"connection", b"close")
# Triton 2.51 answers 500 for malformed JSON, and for JSON of another structure.
UNPARSED = re.compile(
    rb'\{"error":"(?:failed to parse the request JSON buffer|Unable to parse|attempt to |parameter key )'
)
REASON = re.compile(rb"\[hfx:([A-Z_]+)\]")
REASON_BYTES = 300
# Triton's generate extension answers 400 for these, too.
STATUSES = {CONTEXT_TOO_LONG.name: CONTEXT_TOO_LONG.status, QUEUE_FULL.name: 503}
Reword = Callable[[bytes], Awaitable[bytes]]


def forwarded_headers(request: ClientRequest) -> list[Header]:
    """Return the headers to send to Triton. In an infer request, `json_size` bytes of JSON precede the tensors."""
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
    """Forward the answer to a sent request to the client, and append `end`. `reword` rewrites errors.

    Raises Refusal (502) if Triton ends before it answers, and UpstreamLost if it ends during its answer.
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
    """Forward the answer on `connection` to the client, and append `end`. Raises UpstreamLost."""
    piece = await connection.read()
    while connection.status >= 400 and len(piece) < REASON_BYTES and not connection.is_read:
        piece += await connection.read()
    status = 400 if connection.status == 500 and UNPARSED.match(piece) else connection.status
    if status >= 400:
        given = REASON.search(piece[:REASON_BYTES])
        name = given[1].decode() if given else ""
        status = STATUSES.get(name, status)
        response.refusal = refusal_label(status, name)
    headers = [header for header in connection.headers if not (end and header[0] == b"content-length")]
    headers += [RETRY] if status == 503 else []  # the model is overloaded
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
