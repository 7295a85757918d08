"""Forwards requests for the Batch API to its process, which sends the requests of batches back through a socket.

Requests of batches wait while the front has other requests. One of them always runs, so that a batch ends under any
load.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hfx.front.guard import Disconnected
from hfx.front.keys import LABEL_HEADER
from hfx.front.refusals import RETRY, UNKNOWN_PATH, Header, Refusal
from hfx.front.request import ClientRequest
from hfx.front.response import REQUEST_ID
from hfx.front.schemas import Schema, body
from hfx.front.upstream import Upstream, UpstreamConnection, UpstreamLost

PREFIX = b"/v1/"
PATHS = re.compile(rb"(/v1/(?:files|batches))(?:(/[A-Za-z0-9_-]{1,64})(/content|/cancel)?)?")
CANCEL = "/v1/batches/{id}/cancel"  # as `route` returns it
OFF = "Files and batches are off here. Start `hfx serve` with --batch-dir DIR."
STOPPED = "The process of files and batches is being started again. Try again later."
ENDED = "The process of files and batches ended before it answered. Send the request again."
PASSED = (b"content-type", b"content-length")
CHUNKED: Header = (b"transfer-encoding", b"chunked")
UPLOAD_SECONDS = 3600.0
FILE = body("purpose file", purpose={"const": "batch"}, file=str)
CREATED = body(
    "input_file_id endpoint completion_window", input_file_id=str, endpoint=str, completion_window=str, metadata=dict
)
# The paths for /openapi.json: method, path, summary, schema of the body.
BATCH_PATHS: tuple[tuple[str, str, str, Schema], ...] = (
    ("POST", "/v1/files", "Stores a file of requests, which a form (multipart/form-data) has.", FILE),
    ("GET", "/v1/files", "The files.", {}),
    ("GET", "/v1/files/{file_id}", "A file.", {}),
    ("DELETE", "/v1/files/{file_id}", "Deletes a file.", {}),
    ("GET", "/v1/files/{file_id}/content", "The content of a file.", {}),
    ("POST", "/v1/batches", "Answers the requests in a file in the background.", CREATED),
    ("GET", "/v1/batches", "The batches.", {}),
    ("GET", "/v1/batches/{batch_id}", "A batch.", {}),
    ("POST", "/v1/batches/{batch_id}/cancel", "Cancels a batch.", {}),
)


class Batches:
    """The process of the Batch API, at the socket `url` such as unix://%2Ftmp%2Fapi.sock. Empty: there is none."""

    def __init__(self, url: str) -> None:
        self._upstream = Upstream(url) if url else None

    @asynccontextmanager
    async def sent(self, request: ClientRequest) -> AsyncIterator[UpstreamConnection]:
        """Send a request with its body unchanged, and yield the connection to read the answer from.

        Raises Refusal: 404 if there is no such process, 502 if it ends before it answers, 503 while it does not
        listen, 415 for a compressed body.
        """
        if self._upstream is None:
            raise Refusal(404, OFF, reason=UNKNOWN_PATH)
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(415, "Files are taken as they are. Send no Content-Encoding.")
        request.client.allow_slow_body(UPLOAD_SECONDS)
        try:
            connection = await self._upstream.connect()
        except OSError:
            raise Refusal(503, STOPPED, [RETRY]) from None
        try:
            await _send(connection, request)
            yield connection
        except UpstreamLost:
            if request.response.status or request.client.has_left:
                raise
            raise Refusal(502, ENDED, [RETRY]) from None
        finally:
            connection.abort()  # the answer may have come before the end of the request


def route(path: bytes) -> str:
    """Return the route of a path, with {id} for the id of a file or batch. Empty: the path is not of the Batch API."""
    found = PATHS.fullmatch(path)
    return "" if found is None else (found[1] + b"/{id}" * bool(found[2]) + (found[3] or b"")).decode()


async def _send(connection: UpstreamConnection, request: ClientRequest) -> None:
    """Send a request piece by piece, until it is complete or its answer begins."""
    headers, response, query = request.headers, request.response, request.scope["query_string"]
    passed = [(name, headers[name]) for name in PASSED if name in headers]
    passed += [(LABEL_HEADER, response.caller.label.encode()), (REQUEST_ID, response.request_id)]
    is_chunked = b"content-length" not in headers and request.method != "GET"
    path = request.path + (b"?" + query if query else b"")
    head = b"%b %b HTTP/1.1\r\nhost: batches\r\n" % (request.method.encode(), path)
    passed += [CHUNKED] if is_chunked else []
    await connection.write(b"".join([head, *(b"%b: %b\r\n" % header for header in passed), b"\r\n"]))
    more = True
    while more and not connection.status:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more, piece = message["more_body"], message["body"]
        response.received += len(piece)
        if is_chunked:
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (b"" if more else b"0\r\n\r\n")
        await connection.write(piece)
