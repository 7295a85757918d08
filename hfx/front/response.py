"""The answer to a client, as it is sent, and the log of all answers."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hfx.front.refusals import Header, dumped, json_head

REQUEST_ID = b"x-request-id"
NOSNIFF: Header = (b"x-content-type-options", b"nosniff")  # a browser must not take JSON for a page
WAITING_LINES = 10_000
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


class AccessLog:
    """Writes lines such as `2026-01-31T12:00:00.123Z 127.0.0.1 POST /v2/models/m/infer 200 31B 1.8ms 5f2a-1` to stderr.

    A thread of its own does so: a reader of stderr that stops reading must not stop the requests. Lines that wait in
    vain are dropped and counted.
    """

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(WAITING_LINES)
        self._dropped = 0
        threading.Thread(target=self._write, name="access-log", daemon=True).start()

    def add(self, scope: Mapping[str, Any], response: Response, seconds: float) -> None:
        """Log a request and what was answered; the status is 0 where its client left before."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        client = scope["client"][0] if scope["client"] else "-"
        target = scope["raw_path"].decode("ascii", "backslashreplace")
        status = 0 if response.broken else response.status
        line = f"{now} {client} {scope['method']} {target} {status} {response.bytes}B {seconds * 1000:.1f}ms "
        line += f"{response.request_id.decode()}\n"
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if dropped := self._dropped:
                self._dropped = 0
                line += f"{dropped} lines of the access log were dropped: nothing read them in time.\n"
            sys.stderr.write(line)
            sys.stderr.flush()
