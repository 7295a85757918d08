"""The ASGI application: a request is checked, passed on to Triton, and its answer passed back piece by piece."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import re
import secrets
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hfx.front.access_log import AccessLog
from hfx.front.cancellation import refuse_cancellation
from hfx.front.dialects.server import DialectServer, Target
from hfx.front.guard import HEAD_LENGTH, Disconnected, Receive, check_body, read_body
from hfx.front.infer_request import binary_request
from hfx.front.own_metrics import own_metrics
from hfx.front.refusals import RETRY, Header, Refusal, error_object, overloaded
from hfx.front.response import REQUEST_ID, Response, Send
from hfx.front.routes import METRICS, endpoint
from hfx.front.settings import Limits, State
from hfx.front.upstream import Upstream, UpstreamConnection, UpstreamLost, request_head
from hfx.front.web_access import WebAccess, check_media_type, preflight

# What Triton reads of a request's headers. Content-Type is not among them: it parses a form's body on its stack.
FORWARDED = {b"accept-encoding", b"traceparent", b"tracestate"}
CLOSE: Header = (b"connection", b"close")
SINGLE = {
    b"host", b"origin", b"content-length", b"transfer-encoding", b"content-encoding", b"authorization", HEAD_LENGTH,
}  # fmt: skip
# Triton 2.51 answers malformed JSON, and JSON of another form, by 500.
UNPARSED = re.compile(rb'\{"error":"(?:failed to parse the request JSON buffer|Unable to parse|attempt to )')
REQUEST_IDS = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
HEALTH, READY = b"/health", b"/v2/health/ready"
LARGE_BODY = 1 << 18  # bytes

Scope = dict[str, Any]


class App:
    """Passes requests on to `upstream` within `limits`, for callers with one of `keys` (none: for all).

    `metrics` is where /metrics is; `dialects` answers what is not in Triton's protocol. `web` says which pages may ask.
    `started` is when the server was, in seconds since 1970.
    """

    def __init__(
        self,
        upstream: Upstream,
        metrics: Upstream,
        limits: Limits,
        keys: Sequence[str],
        access_log: bool,
        dialects: DialectServer,
        web: WebAccess,
        started: float = 0.0,
    ) -> None:
        self._upstream = upstream
        self._dialects = dialects
        self._metrics = metrics
        self._web = web
        self.limits = limits
        self.state = State()  # by `hfx serve` (__main__.py)
        self._started = started
        self._keys = [_digest(key.encode()) for key in keys]
        self._access_log = AccessLog() if access_log else None
        self._id_prefix = secrets.token_hex(4).encode()
        self._id_numbers = itertools.count(1)
        self._requests = 0
        self._held = 0  # bytes of bodies, and of what they are parsed to
        self._checking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = time.perf_counter()
        response = Response(send, self._request_id(scope["headers"]))
        target = None
        try:
            headers = _single_headers(scope["headers"])
            response.headers += self._check_page(scope, headers)
            check_media_type(scope["method"], headers)
            if (allowed := preflight(scope["method"], headers)) is not None:
                await response.document(b"", allowed)
                return
            target = self._dialects.find(scope["method"], scope["raw_path"])
            await self._answer(scope, receive, headers, response, target)
        except Refusal as refusal:
            error = target.dialect.error if target else error_object
            await response.refuse(refusal.headers, error(refusal))
        except (Disconnected, UpstreamLost):
            response.broken = True  # uvicorn closes the connection of an answer that has no end
        except Exception:
            traceback.print_exc()
            raise
        if self._access_log:
            client = scope["client"][0] if scope["client"] else "-"
            seconds = time.perf_counter() - began
            status = 0 if response.broken else response.status
            self._access_log.add(
                client, scope["method"], scope["raw_path"], status, response.bytes, seconds, response.request_id
            )

    def _request_id(self, headers: Sequence[Header]) -> bytes:
        for name, value in headers:
            if name == REQUEST_ID and REQUEST_IDS.fullmatch(value):
                return value
        return b"%b-%x" % (self._id_prefix, next(self._id_numbers))

    def _check_page(self, scope: Scope, headers: dict[bytes, bytes]) -> list[Header]:
        """The headers of the answer to a web page. Raises Refusal for one that may not ask."""
        if scope["raw_path"] != HEALTH:  # load balancers name any host
            self._web.check_host(headers, scope["http_version"])
        return self._web.check_origin(scope["method"], headers)

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        response: Response,
        target: Target | None,
    ) -> None:
        path, method = scope["raw_path"], scope["method"].encode()
        is_public = target is not None and target.route.is_public
        if path == HEALTH:
            path = READY  # load balancers have no key
        elif not is_public:
            self._check_key(headers)
        part = b"" if target else endpoint(method, path)
        if path == READY:
            await self._answer_health(scope, receive, headers, response)
            return
        with self._bounded() as (reserve, admit):
            body = await read_body(receive, headers, 0 if is_public else self.limits.body, reserve)
            admit()  # only now: slow bodies keep no other request out
            head_length = headers.get(HEAD_LENGTH) if part == b"infer" else None
            reserve(await self._checked(body, head_length))
            client = scope["extensions"]["hfx"]["connection"]
            if part == b"infer" and head_length is None:
                target = await self._dialects.claim(path, body)
            if target is not None:
                await self._dialects.answer(target, body, client, response)
                return
            if part == b"infer":
                body, json_length = binary_request(body, None if head_length is None else int(head_length))
                head_length = b"%d" % json_length
            refuse_cancellation(body if head_length is None else body[: int(head_length)])
            head = request_head(method, path, len(body), _forwarded(headers, part, head_length))
            if path == METRICS:
                own = own_metrics(self.state, self._started)
                await self._pass_on(self._metrics, head, body, client, response, own)
                return
            await self._pass_on(self._upstream, head, body, client, response)

    async def _answer_health(
        self, scope: Scope, receive: Receive, headers: dict[bytes, bytes], response: Response
    ) -> None:
        """Answer by the verdict of `hfx serve`, and then by Triton's own; also when no other request is taken."""
        await read_body(receive, headers, 0, lambda size: None)
        if self.state.fault:
            raise Refusal(503, self.state.fault, [RETRY])
        client = scope["extensions"]["hfx"]["connection"]
        await self._pass_on(self._upstream, request_head(b"GET", READY, 0, []), b"", client, response)

    @contextmanager
    def _bounded(self) -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
        """Functions that count what a request's body takes, and the request; both raise Refusal (503)."""
        reserved = admitted = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            if self._held + size > self.limits.bodies:
                raise overloaded("The bodies of the requests in progress take all the memory that is for them.")
            reserved += size
            self._held += size

        def admit() -> None:
            nonlocal admitted
            if self._requests >= self.limits.requests:
                raise overloaded(f"{self.limits.requests} requests are in progress, as many as are taken at a time.")
            admitted = 1
            self._requests += 1

        try:
            yield reserve, admit
        finally:
            self._held -= reserved
            self._requests -= admitted

    async def _checked(self, body: bytes, head_length: bytes | None) -> int:
        """As `check_body`; a large body is checked in a thread, one at a time (16 MiB: up to 0.2 s)."""
        if len(body) <= LARGE_BODY:
            return check_body(body, head_length)
        async with self._checking:
            return await asyncio.to_thread(check_body, body, head_length)

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        if not self._keys:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        digest = _digest(given.strip())
        known = [hmac.compare_digest(digest, key) for key in self._keys]  # all of them: the time tells nothing
        if scheme.lower() != b"bearer" or not any(known):
            message = "The API key is missing or not known. Send it as `Authorization: Bearer KEY`."
            raise Refusal(401, message, [(b"www-authenticate", b"Bearer")])

    async def _pass_on(
        self, upstream: Upstream, head: bytes, body: bytes, client: Any, response: Response, end: bytes = b""
    ) -> None:
        """Send a request to `upstream`, and its answer to the client, with `end` behind it."""
        try:
            connection = await upstream.connect()
        except OSError:
            message = "Triton does not take requests at the moment; it is being started again. Try again later."
            raise Refusal(503, message, [RETRY]) from None
        client.upstreams.add(connection)  # closed with the client's connection
        try:
            if client.has_left:
                raise Disconnected
            connection.send(head, body)
            await _pass_back(connection, response, end)
        except UpstreamLost:
            if response.status:
                raise
            message = "Triton ended before it answered; it is being started again. Send the request again."
            raise Refusal(502, message, [RETRY]) from None
        finally:
            client.upstreams.discard(connection)
            connection.release()


def _forwarded(headers: dict[bytes, bytes], part: bytes, head_length: bytes | None) -> list[Header]:
    """The headers that go on to Triton."""
    forwarded = [(name, value) for name, value in headers.items() if name in FORWARDED]
    if head_length is not None:
        forwarded.append((HEAD_LENGTH, head_length))
    if part == b"generate_stream":
        forwarded.append(CLOSE)  # until its connection ends, Triton 2.51 holds the request and its model
    return forwarded


async def _pass_back(connection: UpstreamConnection, response: Response, end: bytes) -> None:
    piece = await connection.read()
    status = 400 if connection.status == 500 and UNPARSED.match(piece) else connection.status
    headers = [header for header in connection.headers if not (end and header[0] == b"content-length")]
    await response.start(status, headers)
    await response.body(piece, more=bool(end) or not connection.is_read)
    while not connection.is_read:
        piece = await connection.read()
        await response.body(piece, more=bool(end) or not connection.is_read)
    if end:
        await response.body(end, more=False)


def _single_headers(headers: Sequence[Header]) -> dict[bytes, bytes]:
    """The headers by name; raises Refusal (400) when one that decides how a request is read is there twice."""
    by_name = dict(headers)
    if len(by_name) != len(headers):
        names = [name for name, _ in headers]
        if any(names.count(name) > 1 for name in SINGLE):
            raise Refusal(400, "A header that says how to read the request is there twice. Send it once.")
    return by_name


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
