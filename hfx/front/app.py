"""The ASGI application: a request is checked, passed on to Triton, and its answer passed back piece by piece."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hfx.front import batches
from hfx.front.access import WebAccess, check_media_type, preflight
from hfx.front.dialect import parsed
from hfx.front.dialects.server import DialectServer, Target
from hfx.front.guard import HEAD_LENGTH, Disconnected, Receive, check_json, json_length, read_body, refuse_cancellation
from hfx.front.infer_request import binary_request
from hfx.front.inference import request_name
from hfx.front.keys import ApiKeys
from hfx.front.large_bodies import LargeBodies
from hfx.front.metrics import Metrics, refusal_label
from hfx.front.refusals import RETRY, Header, Refusal, overloaded
from hfx.front.response import LINES, REQUEST_ID, AccessLog, Response, Send
from hfx.front.routes import METRICS, endpoint, named
from hfx.front.settings import Limits, Settings, State
from hfx.front.traces import Tracer, Untraced
from hfx.front.triton_errors import reworded
from hfx.front.upstream import LOST, Upstream, UpstreamConnection, UpstreamLost

# What Triton reads of a request's headers. Content-Type is not among them: it parses a form's body on its stack.
FORWARDED = {b"accept-encoding"}
CLOSE: Header = (b"connection", b"close")
SINGLE = {
    b"host", b"origin", b"content-length", b"transfer-encoding", b"content-encoding", b"authorization", HEAD_LENGTH,
}  # fmt: skip
# Triton 2.51 answers malformed JSON, and JSON of another form, by 500.
UNPARSED = re.compile(
    rb'\{"error":"(?:failed to parse the request JSON buffer|Unable to parse|attempt to |parameter key )'
)
REQUEST_IDS = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
HEALTH, READY, LIVE = b"/health", b"/v2/health/ready", b"/v2/health/live"
SCRAPED = (METRICS, HEALTH)
REASON = re.compile(rb"\[hfx:([A-Z_]+)\]")
REASON_BYTES = 300
LARGE_JSON = 1 << 14  # bytes, which take up to 4 ms; 200,000 values take 250 ms
LARGE_INFER = 1 << 13  # bytes of a request that is ended where its client leaves
LARGEST_JSON = 1 << 18  # bytes that are read in this process, and not in LargeBodies'

Scope = dict[str, Any]
Reword = Callable[[bytes], Awaitable[bytes]]
Result = TypeVar("Result")

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection


@dataclass(eq=False)
class Share:
    """The bytes that a request of `client` holds, of its body and of what that is parsed to."""

    client: ClientConnection
    bytes: int = 0
    is_admitted: bool = False  # its body is complete


class App:
    """Passes requests on to `upstream` within `limits`, for the callers and pages that `settings` allow.

    `dialects` answers what is not in Triton's protocol.
    """

    def __init__(self, settings: Settings, limits: Limits, upstream: Upstream, dialects: DialectServer) -> None:
        self._upstream = upstream
        self._dialects = dialects
        self._idle = upstream.idle
        self._metrics = Upstream(settings.metrics)
        self._batches = batches.Batches(settings.batches)
        self._web = WebAccess(settings.hosts, settings.origins)
        self.limits = limits
        self.state = State()  # by `hfx serve` (__main__.py)
        self.metrics = Metrics(settings.started, upstream.shadow, upstream.idle)
        self.keys = ApiKeys(settings.key_file)
        self.traces = Tracer(settings.otlp_endpoint) if settings.otlp_endpoint else Untraced()
        self._access_log = AccessLog(LINES[settings.access_log]) if settings.access_log else None
        self._id_prefix = secrets.token_hex(4).encode()
        self._id_numbers = itertools.count(1)
        self._requests = 0
        self._held = 0  # bytes of all shares
        self._shares: set[Share] = set()
        self._reading = asyncio.Lock()
        self.large_bodies = LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = Response(send, self._request_id(scope["headers"]))
        try:
            await self._answer_or_refuse(scope, receive, response)
        except (Disconnected, UpstreamLost):
            response.broken = True  # uvicorn closes the connection of an answer that has no end
        except asyncio.CancelledError:  # by uvicorn, once the client has left
            response.broken = True
            raise
        except Exception:
            response.status = response.status or 500
            traceback.print_exc()
            raise
        finally:
            response.caller.spend(response.input_tokens + response.output_tokens)
            self.metrics.add(response)
            if response.trace:
                response.trace.end(scope, response)
            if self._access_log:
                self._access_log.add(scope, response)

    async def _answer_or_refuse(self, scope: Scope, receive: Receive, response: Response) -> None:
        target = None
        try:
            headers = _single_headers(scope["headers"])
            response.trace = self.traces.begin(headers)
            response.headers += self._check_page(scope, headers)
            check_media_type(scope["method"], headers)
            if (allowed := preflight(scope["method"], headers)) is not None:
                await response.document(b"", allowed)
                return
            target = self._dialects.find(scope["method"], scope["raw_path"])
            await self._answer(scope, receive, headers, response, target)
        except Refusal as refusal:
            error = target.dialect.error(refusal) if target else self._dialects.error(scope["raw_path"], refusal)
            await response.refuse(refusal, error)

    def _request_id(self, headers: Sequence[Header]) -> bytes:
        for name, value in headers:
            if name == REQUEST_ID and REQUEST_IDS.fullmatch(value):
                return value
        return b"%b-%x" % (self._id_prefix, next(self._id_numbers))

    def _check_page(self, scope: Scope, headers: dict[bytes, bytes]) -> list[Header]:
        """The headers of the answer to a web page. Raises Refusal for one that may not ask."""
        if scope["raw_path"] != HEALTH and not scope["extensions"]["hfx"]["connection"].only_scrapes:
            # Load balancers and Prometheus name any host.
            self._web.check_host(headers, scope["http_version"])
        return self._web.check_origin(scope["method"], headers)

    async def _answer(
        self, scope: Scope, receive: Receive, headers: dict[bytes, bytes], response: Response, target: Target | None
    ) -> None:
        path, method = scope["raw_path"], scope["method"].encode()
        client = scope["extensions"]["hfx"]["connection"]
        only_scrapes = client.only_scrapes
        if only_scrapes and path not in SCRAPED:
            raise Refusal(404, "This port has /metrics and /health alone. Send requests to the port of the HTTP API.")
        is_public = target is not None and target.route.is_public
        if path == HEALTH:
            path = READY  # load balancers have no key
        elif not (is_public or only_scrapes):
            known = client.is_background
            response.caller = self.keys.labelled(headers) if known else self.keys.check(headers)
        if target is None and path.startswith(batches.PREFIX) and (route := batches.route(path)):
            response.route = route
            await self._forward(scope, receive, headers, response)
            return
        name, part = "", b"" if target else endpoint(method, path)
        response.route, response.model = (target.route.path, target.model) if target else named(path)
        if method == b"POST":
            response.caller.admit(time.monotonic(), has_counts=not part)
        kept = None if self._idle is None else self._idle.kept(path)
        if path == READY or kept is not None:
            await read_body(receive, headers, 0, lambda size: None)
            await (self._answer_health(client, response) if kept is None else response.json(kept))
            return
        with self._share(client) as share:
            reserve = partial(self._reserve, share)
            body = await read_body(receive, headers, 0 if is_public else self.limits.body, reserve)
            response.received = len(body)
            self._admit(share)  # only now: slow bodies keep no other request out
            head_length = headers.get(HEAD_LENGTH) if part == b"infer" else None
            size = len(body) if head_length is None else json_length(head_length, body)
            reserve(await self._read(client, size, check_json, body[:size]))
            if part == b"infer" and head_length is None:
                target = await self._dialects.claim(path, body, partial(self._read, client, size))
            if target is not None:
                content = await self._read(client, size, parsed, body) if body else None
                reserve(-len(body))
                del body
                await self._dialects.answer(target, content, client, response)
                return
            if part == b"infer":
                given = None if head_length is None else size
                name = request_name() if len(body) > LARGE_INFER else ""
                body, size = await self._read(client, size, binary_request, body, given, name)
                head_length = b"%d" % size
            await self._read(client, size, refuse_cancellation, body[:size])
            is_metrics = path == METRICS
            sent = (self._metrics if is_metrics else self._upstream).sent(
                method, path, body, _forwarded(headers, part, head_length, response), client
            )
            reword = partial(reworded, models=self._dialects.described) if part else None
            with self._dialects.ended_if_left(client, response.model, name):
                await _pass_on(sent, response, self._own_metrics(client) if is_metrics else b"", reword)

    async def _forward(self, scope: Scope, receive: Receive, headers: dict[bytes, bytes], response: Response) -> None:
        """Pass a request of the Batch API on, and its answer back; its body is not kept here."""
        if scope["method"] == "POST" and response.route != batches.CANCEL:  # which frees what others may use
            response.caller.admit(time.monotonic(), has_counts=True)
        async with self._batches.sent(scope, receive, headers, response) as connection:
            await _pass_back(connection, response, b"")

    @property
    def in_progress(self) -> int:
        """The requests in progress whose bodies are complete."""
        return self._requests

    def _own_metrics(self, client: ClientConnection) -> bytes:
        metrics = self.metrics
        metrics.restarts, metrics.in_progress, metrics.connections = (
            self.state.restarts,
            self._requests,
            len(client.connections),
        )
        return metrics.text()

    async def _answer_health(self, client: ClientConnection, response: Response) -> None:
        """Answer by the verdict of `hfx serve`, and then by Triton's own; also when no other request is taken.

        Whatever Triton answers but 200 is a 503 with a reason: from 26.01 on it is 400, without a body, as soon as a
        process of a model has died.
        """
        if fault := self.state.fault or await self._unready(client):
            raise Refusal(503, fault, [RETRY])
        await response.document(b"", [])

    async def _unready(self, client: Any) -> str:
        """Why Triton is not ready, by itself; an empty string when it is.

        Beside models that are loaded on demand it need only be live: loads, also failed ones, make it unready.
        """
        try:
            async with self._upstream.sent(b"GET", LIVE if self._idle else READY, client=client) as connection:
                said = (await connection.read())[:REASON_BYTES].decode(errors="replace")
                is_ready = connection.status == 200
        except UpstreamLost:
            return LOST
        return "" if is_ready else f"Triton says that not all of its models are ready. {said}".rstrip()

    @contextmanager
    def _share(self, client: ClientConnection) -> Iterator[Share]:
        """A request's share of what requests may take, until it is answered."""
        share = Share(client)
        self._shares.add(share)
        try:
            yield share
        finally:
            self._end(share)

    def _end(self, share: Share) -> None:
        self._shares.discard(share)
        self._held -= share.bytes
        self._requests -= share.is_admitted
        share.bytes, share.is_admitted = 0, False

    def _reserve(self, share: Share, size: int) -> None:
        """Count `size` bytes; the bodies that come slowest give way. Raises Refusal (503) where that is not enough."""
        while self._held + size > self.limits.bodies:
            slow = {each.client: each for each in self._shares if each is not share and not each.is_admitted}
            client = share.client.slowest(slow)
            if client is None:
                raise overloaded("The bodies of the requests in progress take all the memory that is for them.")
            self._end(slow[client])
            client.give_way()
        share.bytes += size
        self._held += size

    def _admit(self, share: Share) -> None:
        """Count a request whose body is complete. Raises Refusal (503)."""
        if self._requests >= self.limits.requests:
            raise overloaded(f"{self.limits.requests} requests are in progress, as many as are taken at a time.")
        share.is_admitted = True
        self._requests += 1

    async def _read(self, client: ClientConnection, size: int, read: Callable[..., Result], *arguments: Any) -> Result:
        """What `read` makes of JSON of `size` bytes; of much in a thread or process, one at a time: others go on."""
        if size <= LARGE_JSON:
            return read(*arguments)
        if size > LARGEST_JSON:
            return await self.large_bodies.call(client, read, *arguments)
        async with self._reading:
            if client.has_left:
                raise Disconnected
            return await asyncio.to_thread(read, *arguments)


def _forwarded(headers: dict[bytes, bytes], part: bytes, head_length: bytes | None, response: Response) -> list[Header]:
    """The headers that go on to Triton."""
    forwarded = [(name, value) for name, value in headers.items() if name in FORWARDED]
    forwarded += response.trace.headers if response.trace else ()
    if head_length is not None:
        forwarded.append((HEAD_LENGTH, head_length))
    if part == b"generate_stream":
        forwarded.append(CLOSE)  # until its connection ends, Triton 2.51 holds the request and its model
    return forwarded


async def _pass_on(
    sent: AbstractAsyncContextManager[UpstreamConnection], response: Response, end: bytes, reword: Reword | None
) -> None:
    """Pass the answer to a request that was sent on to the client, with `end` behind it; `reword` changes errors."""
    try:
        async with sent as connection:
            await _pass_back(connection, response, end, reword)
    except UpstreamLost:
        if response.status:
            raise
        raise Refusal(502, f"{LOST} Send the request again.", [RETRY]) from None


async def _pass_back(
    connection: UpstreamConnection, response: Response, end: bytes, reword: Reword | None = None
) -> None:
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


def _single_headers(headers: Sequence[Header]) -> dict[bytes, bytes]:
    """The headers by name; raises Refusal (400) when one that decides how a request is read is there twice."""
    by_name = dict(headers)
    if len(by_name) != len(headers):
        names = [name for name, _ in headers]
        if any(names.count(name) > 1 for name in SINGLE):
            raise Refusal(400, "A header that says how to read the request is there twice. Send it once.")
    return by_name
