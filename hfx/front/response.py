"""The answer to a client, as it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hfx.front.refusals import Header, dumped, json_head

REQUEST_ID = b"x-request-id"
NOSNIFF: Header = (b"x-content-type-options", b"nosniff")  # a browser must not take JSON for a page
Send = Callable[[Any], Awaitable[None]]


class Response:
    """The answer to a client, and what the access log tells of it; `headers` are those of every kind of answer."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self.request_id = request_id
        self.headers: list[Header] = [NOSNIFF, (REQUEST_ID, request_id)]
        self._send = send
        self.status = 0
        self.bytes = 0
        self.broken = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the head."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def body(self, piece: bytes, more: bool) -> None:
        """Send a piece of the body."""
        self.bytes += len(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def json(self, body: bytes) -> None:
        """Send a whole answer that is JSON."""
        await self.start(200, json_head(body))
        await self.body(body, more=False)

    async def document(self, body: bytes, headers: Sequence[Header]) -> None:
        """Send a whole answer of another kind, which `headers` tell."""
        await self.start(200, [*headers, (b"content-length", b"%d" % len(body))])
        await self.body(body, more=False)

    async def refuse(self, headers: Sequence[Header], error: tuple[int, object]) -> None:
        """Send a refusal: its status and JSON are `error`."""
        body = dumped(error[1])
        await self.start(error[0], [*json_head(body), *headers])
        await self.body(body, more=False)
