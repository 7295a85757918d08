"""Clients' connections: uvicorn's HTTP protocol over httptools, with limits on number, time and size of each part.

uvicorn limits neither the size of a request's head nor the time that a request may take. httptools does not limit the
framing of a chunk.
"""

from __future__ import annotations

import fcntl
import json
import math
import termios
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    import asyncio

    from hfx.front.metrics import Metrics
    from hfx.front.settings import Limits

GOODBYE_SECONDS = 1.0  # for the client to close its side of a TLS connection that was closed here
REFUSED_SECONDS = 2.0  # for a connection above the limit to send a request, which is then refused
# Most clients read an answer only after they have sent their whole request, and get a reset if the connection is closed
# before that. The rest of the request is therefore read and dropped (RFC 9112, 9.6), within these limits.
LINGER_BYTES = 128 << 20
LINGER_SECONDS = 10.0
YIELDING_SECONDS = 1.0  # after which a connection without a complete request gives way to a new one

URL_BYTES = 8 << 10
HEAD_BYTES = 64 << 10
HEADERS = 100
FRAME_BYTES = 8  # framing of chunks that is allowed for each byte of the body
PIPELINED = 8  # requests that may wait for the answer to an earlier request


class Receiving(Enum):
    """The part of a request that comes next."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class _AnswerTransport:
    """The transport of one answer, which writes the head together with the first piece of the body.

    A write costs as much as all the other work for a small request.
    """

    def __init__(self, cycle: RequestResponseCycle, connection: ClientConnection) -> None:
        self._cycle = cycle
        self._connection = connection
        self._transport = cycle.transport
        self._head = b"" if cycle.scope["method"] == "HEAD" else None  # answers to HEAD have no body
        self.is_closing = cycle.transport.is_closing

    def write(self, data: bytes) -> None:
        """Write `data` if the connection is open. If it is the head, keep it until the first piece of the body."""
        if self._head is None and self._cycle.response_started:  # data before that is a 100 Continue
            self._head = data
        elif not self.is_closing():
            self._transport.write(self._head + data if self._head else data)
            self._head = self._head and b""

    def close(self) -> None:
        """Write the head if it is still kept, and close the connection."""
        if self._head and not self.is_closing():
            self._transport.write(self._head)
        self._connection.close_when_read()


class ClientConnection(HttpToolsProtocol):
    """A client's connection. The tasks of its requests are cancelled when the client disconnects."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tasks: set[asyncio.Task[None]] = set()  # of this client's requests; uvicorn adds them
        self.only_scrapes = False  # whether it came to the port for /metrics and /health
        self.is_background = False  # whether it came to the socket for batches
        self._limits: Limits = cast(Any, self.app).limits
        self._metrics: Metrics = cast(Any, self.app).metrics
        self._receiving = Receiving.HEAD
        self._since = self.loop.time()  # of the last data received, or of the end of the last answer
        self._deadline = self._since + self._limits.head_seconds
        self._body_deadline = math.inf
        self._blocked_since = math.inf
        self._is_refused = False
        self._earlier: Any = None  # the request before that of `cycle`
        self._left_to_drop: int | None = None  # bytes to read and drop, set once the answer is sent
        self._refusal = (400, "This is not a valid HTTP/1.1 request. Send one.")
        self._head_bytes = self._headers_seen = self._frame_bytes = 0
        self._request_since, self._request_bytes = self._since, 0  # of the request that comes next

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection.

        If there are too many, close the slowest other connection to make room, or refuse the new connection.
        """
        super().connection_made(transport)
        if len(self.connections) <= self._limits.connections:
            return
        slowest = self.slowest(other for other in self.connections if isinstance(other, ClientConnection))
        if slowest is not None:
            slowest.give_way()
        elif len(self.connections) <= self._limits.connections + self._limits.spare:
            self._is_refused = True
            self._deadline = self._since + REFUSED_SECONDS
        else:
            self._metrics.ended["refused"] += 1
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's requests after a disconnect, which closes their connections to Triton."""
        for task in self.tasks:
            task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, and refuse the request if its head or its framing is too large."""
        if self._left_to_drop is not None:
            self._left_to_drop -= len(data)
            if self._left_to_drop < 0:
                self.transport.abort()
            return
        if self._is_refused:
            self.refuse(503, "All connections are in use. Try again later.", "retry-after: 1\r\n")
            return
        self._since = self.loop.time()
        if self._receiving is Receiving.NOTHING:  # `data` may also be an empty line, which begins no request
            self._receive_head()
        self._request_bytes += len(data)
        if self._receiving is Receiving.HEAD:
            self._head_bytes += len(data)
        else:
            self._frame_bytes += len(data)
        self._parse(data)
        if self._receiving is Receiving.HEAD and self._head_bytes > HEAD_BYTES:
            message = f"The head of the request is larger than {HEAD_BYTES} bytes. Send fewer headers."
            self.refuse(431, message, lingers=True)
        elif self._receiving is Receiving.BODY and self._frame_bytes > HEAD_BYTES:
            message = "The body comes in too small chunks. Send larger ones, or a Content-Length."
            self.refuse(400, message, lingers=True)

    def pause_writing(self) -> None:
        """Note that the client does not read its answer at the moment."""
        self._blocked_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client reads its answer again."""
        self._blocked_since = math.inf
        super().resume_writing()

    def _parse(self, data: bytes) -> None:
        """Parse `data`. Refuse a request that can't be parsed, or that a callback has rejected.

        httptools takes what follows a head with an offer to upgrade for another protocol. Such a head is parsed again,
        by a new parser and without its offer, which a server may ignore (RFC 9110, 7.8). The same rules frame its body.
        """
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except HttpParserUpgrade as offer:
                    version = self.parser.get_http_version().encode()
                    first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)
                    headers = (b"%b: %b" % header for header in self.headers if header[0] != b"upgrade")
                    data = b"\r\n".join((first, *headers, b"", data[offer.args[0] :]))
                    self.parser = HttpRequestParser(self)  # the old one reads no more if the connection is to close
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        except HttpParserError:
            self.refuse(*self._refusal, lingers=True)

    # httptools' callbacks; if one of them raises an exception, the request is refused

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        if self._receiving is not Receiving.HEAD:  # pipelined
            self._receive_head()
        self._head_bytes = max(self._head_bytes, 1)
        self._headers_seen = 0
        self.scope["extensions"] = {"hfx": {"connection": self}}

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target. Reject a target that is too long."""
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            self._reject(414, f"The path is longer than {URL_BYTES} bytes. Send a shorter one.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Reject too many headers, huge ones and unknown transfer encodings; ignore trailers."""
        self._headers_seen += 1
        if self._headers_seen > HEADERS or len(name) + len(value) > HEAD_BYTES:
            self._reject(431, f"The request has more than {HEADERS} headers, or a huge one. Send fewer.")
        is_old = self.parser.get_http_version() == "1.0"  # which has no chunks (RFC 9112, 6.1)
        if name.lower() == b"transfer-encoding" and (value.lower() != b"chunked" or is_old):
            self._reject(400, "This Transfer-Encoding is not known. Send chunked alone, or a Content-Length.")
        if self._receiving is Receiving.HEAD:  # trailers mean nothing to Triton
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application, because the head is complete. A head with an offer to upgrade is parsed again."""
        if self.parser.get_method() == b"CONNECT":
            self._reject(501, "This server is no proxy. Send GET or POST.")
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._reject(505, "This version of HTTP is not spoken here. Send HTTP/1.1.")
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= PIPELINED:
            self._reject(400, "Too many requests wait on this connection. Read the answers first.")
        self._earlier = self.cycle
        super().on_headers_complete()
        self._receiving = Receiving.BODY
        self._frame_bytes = 0
        self._deadline = self._since + self._limits.pause_seconds
        self._body_deadline = self._since + self._limits.body_seconds
        self.cycle.transport = cast(Any, _AnswerTransport(self.cycle, self))

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body, and allow time and framing for the next one."""
        self._frame_bytes -= (1 + FRAME_BYTES) * len(body)
        self._deadline = min(self._since + self._limits.pause_seconds, self._body_deadline)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if not self.pipeline:  # a large piece may have paused reading; without this, a disconnect would go unnoticed
            self.flow.resume_reading()
        self._receiving = Receiving.NOTHING
        self._await_request()

    def on_response_complete(self) -> None:
        """Note that the answer is complete."""
        super().on_response_complete()
        if self._left_to_drop is not None:
            self._unset_keepalive_if_required()
        elif self.transport.is_closing():
            self._await_goodbye()
        self._since = self.loop.time()
        if self._receiving is Receiving.NOTHING:
            self._await_request()

    # Limits

    @property
    def has_left(self) -> bool:
        """Whether the connection has ended."""
        return bool(self.transport.is_closing())

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    @property
    def is_receiving(self) -> bool:
        """Whether the connection is open, and no request is in progress except an incomplete one."""
        return not self.has_left and (self.is_idle or (self._receiving is Receiving.BODY and not self.pipeline))

    def allow_slow_body(self, seconds: float) -> None:
        """Allow `seconds` for the whole body of this request. Its pauses stay limited."""
        self._body_deadline = self._since + seconds

    def rate(self, now: float) -> tuple[float, float]:
        """Return the bytes per second of the incomplete request, and when it began. Idle connections sort first."""
        return self._request_bytes / (now - self._request_since), self._request_since

    def slowest(self, others: Iterable[ClientConnection]) -> ClientConnection | None:
        """Return the connection among `others` that is to give way to this one, or None.

        It has had no complete request for more than YIELDING_SECONDS, and its next request comes slowest.
        """
        slow = (each for each in others if each is not self and each.is_receiving)
        late = (each for each in slow if self._since - each._request_since > YIELDING_SECONDS)
        return min(late, key=lambda each: each.rate(self._since), default=None)

    def check(self, now: float) -> None:
        """End the connection if it has exceeded a time limit at `now`, on the loop's clock."""
        if self._left_to_drop is not None and now > self._deadline:
            self.transport.abort()
        elif now - self._blocked_since > self._limits.write_seconds:
            self._metrics.ended["unread"] += 1
            self.transport.abort()
        elif now > self._deadline and not self.flow.read_paused:
            if self._head_bytes == 0 or self._receiving is Receiving.NOTHING:
                self._metrics.ended["idle"] += 1
                self._close()  # no request was begun
            else:
                self._metrics.ended["slow"] += 1
                self.refuse(408, "The request did not come in time. Send it without pauses.")

    def refuse(self, status: int, message: str, header: str = "", lingers: bool = False) -> None:
        """Answer with `status` unless an answer has begun, and close the connection.

        An answer may even be complete before its request is, which gets no second one. Earlier requests are answered
        first; the connection then closes without an answer to this one, which their client could take for theirs. If
        it `lingers`, the connection closes as in `close_when_read`.
        """
        if self.transport.is_closing():
            return
        if self._left_to_drop is not None:
            if not lingers:
                self.transport.close()
            return
        is_in_body = self._receiving is Receiving.BODY
        if is_in_body and self.pipeline:
            self.pipeline.popleft()
            self.cycle, is_in_body = self._earlier, False
        if self.cycle is not None and not self.cycle.response_complete and not is_in_body:
            self.cycle.keep_alive = False
            self._left_to_drop, self._deadline = LINGER_BYTES, math.inf
            self.flow.resume_reading()  # to notice a disconnect
            return
        if self.cycle is None or not is_in_body or not self.cycle.response_started:
            body = json.dumps({"error": message}).encode()
            head = f"content-type: application/json\r\nx-content-type-options: nosniff\r\n{header}connection: close\r\n"
            head += f"content-length: {len(body)}\r\n\r\n"
            self._metrics.refused(status)
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        if is_in_body and not self.cycle.response_complete:  # its application must not answer, too
            self.cycle.disconnected = True
            for task in self.tasks:
                task.cancel()
        if lingers:
            self.close_when_read()
        else:
            self._close()

    def close_when_read(self) -> None:
        """Close the connection after an answer.

        If more of the request may come, first drop what arrives, until the client closes its side, has sent more than
        LINGER_BYTES, or LINGER_SECONDS have passed.
        """
        if self._receiving is Receiving.NOTHING or self.transport.is_closing():
            self._close()
            return
        self._left_to_drop = LINGER_BYTES
        self._deadline = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()

    def shutdown(self) -> None:
        """Close the connection once the request in progress is answered."""
        super().shutdown()
        if self.transport.is_closing():
            self._await_goodbye()

    def _close(self) -> None:
        self.transport.close()
        self._await_goodbye()

    def _await_goodbye(self) -> None:
        """End a closed TLS connection soon. Its client need not close it, and uvloop would keep it for 30 s."""
        if self.transport.get_extra_info("sslcontext") is not None:
            self.loop.call_later(GOODBYE_SECONDS, self._abort_when_sent)

    def _abort_when_sent(self) -> None:
        if self not in self.connections:
            return
        unsent = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        if any(unsent):  # because the client reads slowly
            self._await_goodbye()
        else:
            self.transport.abort()

    def _reject(self, status: int, message: str) -> None:
        self._refusal = (status, message)
        raise ValueError(message)

    def give_way(self) -> None:
        """Close the connection to make room for another one."""
        self._metrics.ended["replaced"] += 1
        if self._request_bytes == 0:
            self._close()
        else:
            self.refuse(408, "The request comes slowly, and all connections are in use. Send it without pauses.")

    def _receive_head(self) -> None:
        self._await_request()
        self._receiving = Receiving.HEAD
        self._deadline = self._since + self._limits.head_seconds

    def _await_request(self) -> None:
        self._head_bytes = 0
        self._request_since, self._request_bytes = self._since, 0
        self._deadline = self._since + self._limits.idle_seconds if self.is_idle else math.inf
