"""The answer to a client, and the access log of all answers."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hfx.front.keys import ANYONE, Caller
from hfx.front.refusals import JSON, Header, Refusal, dumped, json_head, refusal_label

REQUEST_ID = b"x-request-id"
NOSNIFF: Header = (b"x-content-type-options", b"nosniff")  # a browser must not take JSON for a page
WAITING_LINES = 10_000
STDERR = 2
Send = Callable[[Any], Awaitable[None]]


def log_line(line: str) -> None:
    """Write a line for the operator to stderr; a full disk, or a pipe without a reader, does not matter."""
    with suppress(OSError):
        print(f"hfx: {line}", file=sys.stderr, flush=True)


class Response:
    """The answer to a client, with the facts about it for the access log and the metrics.

    `headers` are sent with every kind of answer. `route` is the path with {model} in place of a model's name.
    `received` is the size of the request's body in bytes. `refusal` is the name of the reason if the request was
    refused. `first_byte` is the number of seconds until the head was sent, or None if it was not. `input_tokens` and
    `output_tokens` are 0 if they were not counted. `broken` is whether the answer ended before it was complete. Without
    `has_body`, for HEAD, uvicorn sends the head alone.
    """

    def __init__(self, send: Send, request_id: bytes, has_body: bool = True) -> None:
        self.request_id = request_id
        self.headers: list[Header] = [NOSNIFF, (REQUEST_ID, request_id)]
        self._send = send
        self._has_body = has_body
        self.began = time.perf_counter()
        self.first_byte: float | None = None
        self.status = 0
        self.bytes = self.received = 0
        self.input_tokens = self.output_tokens = 0
        self.route = self.model = self.refusal = ""
        self.caller: Caller = ANYONE
        self.broken = False

    @property
    def logged_status(self) -> int:
        """The status, or 0 if the answer was not completed, for example because the client has disconnected."""
        return 0 if self.broken else self.status

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the status line and the headers."""
        self.status = status
        self.first_byte = time.perf_counter() - self.began
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def body(self, piece: bytes, more: bool) -> None:
        """Send a piece of the body."""
        self.bytes += len(piece) * self._has_body
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})

    async def json(self, body: bytes) -> None:
        """Send a whole JSON answer."""
        await self.document(body, [JSON])

    async def document(self, body: bytes, headers: Sequence[Header]) -> None:
        """Send a whole answer of another kind, which `headers` describe."""
        await self.start(200, [*headers, (b"content-length", b"%d" % len(body))])
        await self.body(body, more=False)

    async def refuse(self, refusal: Refusal, error: tuple[int, object]) -> None:
        """Send a refusal. `error` is its status and its JSON."""
        self.refusal = refusal_label(error[0], refusal.reason)
        body = dumped(error[1])
        await self.start(error[0], [*json_head(body), *refusal.headers])
        await self.body(body, more=False)


class AccessLog:
    """Writes a line for each request to stderr, as text or as a JSON object.

    A line of text is `2026-01-31T12:00:00.123Z 127.0.0.1 POST /v2/models/m/infer 200 31B 1.8ms 5f2a-1`. A separate
    thread writes the lines, so that a reader of stderr that stops reading does not stop the requests. Lines that can't
    be written in time, or because the disk is full, are dropped and counted.
    """

    def __init__(self, line: Callable[[Mapping[str, Any], Response], str]) -> None:
        self._line = line
        self._lines: queue.Queue[str] = queue.Queue(WAITING_LINES)
        self._dropped = 0
        threading.Thread(target=self._write, name="access-log", daemon=True).start()

    def add(self, scope: Mapping[str, Any], response: Response) -> None:
        """Log a request and its answer. The status is 0 if the answer was not completed."""
        try:
            self._lines.put_nowait(f"{self._line(scope, response)}\n")
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        begun = b""  # the rest of a line that was partly written
        while True:
            line = self._lines.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line += f"{dropped} lines of the access log were dropped: they could not be written in time.\n"
            left = begun + line.encode()
            size = len(left)
            try:
                while left:
                    left = left[os.write(STDERR, left) :]
            except OSError:  # the disk is full, or the pipe has no reader any more
                if len(left) == size:
                    self._dropped += dropped + 1
                    continue
            begun = left


def text_line(scope: Mapping[str, Any], response: Response) -> str:
    """Return the log line of a request as text. Its fields are always present."""
    now, client, path = _seen(scope)
    milliseconds = 1000 * (time.perf_counter() - response.began)
    return (
        f"{now} {client} {scope['method']} {path} {response.logged_status} {response.bytes}B {milliseconds:.1f}ms "
        f"{response.request_id.decode()}"
    )


def json_line(scope: Mapping[str, Any], response: Response) -> str:
    """Return the log line of a request as a JSON object, without fields that are not known."""
    now, client, path = _seen(scope)
    first = None if response.first_byte is None else round(1000 * response.first_byte, 3)
    fields = {
        "time": now,
        "client": client,
        "method": scope["method"],
        "path": path,
        "route": response.route,
        "model": response.model,
        "status": response.logged_status,
        "refusal": response.refusal,
        "key": response.caller.label,
        "request_bytes": response.received,
        "response_bytes": response.bytes,
        "input_tokens": response.input_tokens or None,
        "output_tokens": response.output_tokens or None,
        "first_byte_ms": first,
        "ms": round(1000 * (time.perf_counter() - response.began), 3),
        "request_id": response.request_id.decode(),
    }
    return json.dumps({name: value for name, value in fields.items() if value not in ("", None)})


LINES = {"text": text_line, "json": json_line}


def _seen(scope: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the time, and the client and path of a request."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    client = scope["client"][0] if scope["client"] else "-"
    return now, client, scope["raw_path"].decode("ascii", "backslashreplace")
