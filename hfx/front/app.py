"""The ASGI application: a request passes through its layers, one after the other, until one of them answers."""

from __future__ import annotations

import itertools
import re
import secrets
import time
import traceback
from asyncio import CancelledError
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hfx.front import batches
from hfx.front.access import WebAccess, check_media_type, preflight
from hfx.front.dialect import parsed
from hfx.front.dialect_server import DialectServer
from hfx.front.forwarding import REASON_BYTES, forwarded_headers, pass_back, pass_on
from hfx.front.guard import HEAD_LENGTH, Disconnected, Receive, check_json, json_length, read_body, refuse_cancellation
from hfx.front.in_progress import InProgress
from hfx.front.infer_request import binary_request
from hfx.front.inference import request_name
from hfx.front.keys import ApiKeys
from hfx.front.large_bodies import LargeBodies
from hfx.front.metrics import Metrics
from hfx.front.refusals import RETRY, Header, Refusal
from hfx.front.request import ClientRequest, Scope
from hfx.front.response import LINES, REQUEST_ID, AccessLog, Response, Send
from hfx.front.routes import METRICS, endpoint, named
from hfx.front.settings import Limits, Settings, State
from hfx.front.traces import Tracer, Untraced
from hfx.front.triton_errors import reworded
from hfx.front.upstream import LOST, Upstream, UpstreamLost

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection
    from hfx.front.idle import IdleModels

REQUEST_IDS = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
HEALTH, READY, LIVE = b"/health", b"/v2/health/ready", b"/v2/health/live"
SCRAPED = (METRICS, HEALTH)
LARGE_INFER = 1 << 13  # bytes; a larger request is ended in Triton if its client disconnects


class App:
    """Forwards requests to `upstream` within `limits`, for the callers and web pages that `settings` allow.

    `dialects` answers requests that are not in Triton's protocol. `idle` manages the models that are loaded on demand.
    """

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        upstream: Upstream,
        dialects: DialectServer,
        metrics: Metrics,
        idle: IdleModels | None = None,
    ) -> None:
        self._upstream = upstream
        self._dialects = dialects
        self._idle = idle
        self._triton_metrics = Upstream(settings.metrics)
        self._batches = batches.Batches(settings.batches)
        self._web = WebAccess(settings.hosts, settings.origins)
        self.limits = limits
        self.state = State()  # updated with the messages of `hfx serve` (__main__.py)
        self.metrics = metrics
        self.keys = ApiKeys(settings.key_file)
        self.traces = Tracer(settings.otlp_endpoint) if settings.otlp_endpoint else Untraced()
        self._access_log = AccessLog(LINES[settings.access_log]) if settings.access_log else None
        self._id_prefix = secrets.token_hex(4).encode()
        self._id_numbers = itertools.count(1)
        self.in_progress = InProgress(limits)
        self.large_bodies = LargeBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and print an exception. uvicorn's own log is off (__main__.py)."""
        try:
            await self._answer_and_record(scope, receive, send)
        except Exception:
            traceback.print_exc()
            raise

    async def _answer_and_record(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = Response(send, self._request_id(scope["headers"]), has_body=scope["method"] != "HEAD")
        request = ClientRequest(scope, receive, response)
        try:
            await self._answer(request)
        except (Disconnected, UpstreamLost):
            response.broken = True  # uvicorn closes the connection if an answer is not complete
        except CancelledError:  # the client has disconnected
            response.broken = True
            raise
        except Exception:
            response.status = response.status or 500
            raise
        finally:
            response.caller.spend(response.input_tokens + response.output_tokens)
            self.metrics.add(response)
            request.trace.end(scope, response)
            if self._access_log:
                self._access_log.add(scope, response)

    def _request_id(self, headers: Sequence[Header]) -> bytes:
        for name, value in headers:
            if name == REQUEST_ID and REQUEST_IDS.fullmatch(value):
                return value
        return b"%b-%x" % (self._id_prefix, next(self._id_numbers))

    async def _answer(self, request: ClientRequest) -> None:
        """Answer the request, or refuse it with an error of its dialect, or of Triton if it has no dialect."""
        try:
            await self._pass_through_layers(request)
        except Refusal as refusal:
            target = request.target
            error = target.dialect.error(refusal) if target else self._dialects.error(request.path, refusal)
            await request.response.refuse(refusal, error)

    async def _pass_through_layers(self, request: ClientRequest) -> None:
        try:
            for layer in self.LAYERS:
                if await layer(self, request):
                    return
        finally:
            if request.share is not None:
                self.in_progress.end(request.share)

    # Each layer returns whether it has answered the request, or raises Refusal, Disconnected or UpstreamLost.

    async def _read_head(self, request: ClientRequest) -> bool:
        request.read_headers()
        request.trace = self.traces.begin(request.headers)
        return False

    async def _check_page(self, request: ClientRequest) -> bool:
        """Refuse requests from foreign web pages, and answer the preflights of allowed pages."""
        method, headers = request.method, request.headers
        if request.path != HEALTH and not request.client.only_scrapes:  # load balancers and Prometheus send any Host
            self._web.check_host(headers, request.scope["http_version"])
        request.response.headers += self._web.check_origin(method, headers)
        check_media_type(method, headers)
        allowed = preflight(method, headers)
        if allowed is None:
            return False
        await request.response.document(b"", allowed)
        return True

    async def _find_dialect(self, request: ClientRequest) -> bool:
        request.target = self._dialects.find(request.method, request.path)
        return False

    async def _check_caller(self, request: ClientRequest) -> bool:
        """Check the API key. /health needs no key, for load balancers, nor does the port for metrics."""
        client = request.client
        if client.only_scrapes:
            if request.path not in SCRAPED:
                fix = "Send requests to the port of the HTTP API."
                raise Refusal(404, f"This port has /metrics and /health alone. {fix}")
        elif request.path != HEALTH and not request.is_public:
            check = self.keys.labelled if client.is_background else self.keys.check
            request.response.caller = check(request.headers)
        return False

    async def _pass_to_batches(self, request: ClientRequest) -> bool:
        """Forward a request of the Batch API to its process. The body is streamed and not held in memory here."""
        response = request.response
        if request.target is not None or not request.path.startswith(batches.PREFIX):
            return False
        route = batches.route(request.path)
        if not route:
            return False
        response.route = route
        if request.method == "POST" and route != batches.CANCEL:  # a cancellation frees resources for others
            response.caller.admit(time.monotonic(), has_counts=True)
        async with self._batches.sent(request) as connection:
            await pass_back(connection, response)
        return True

    async def _find_route(self, request: ClientRequest) -> bool:
        """Find the route of the path. Refuse a path that is neither a dialect's nor one of Triton's open paths."""
        response = request.response
        if request.target is not None:
            response.route, response.model = request.target.route.path, request.target.model
        else:
            path = READY if request.path == HEALTH else request.path
            request.endpoint = endpoint(request.method.encode(), path)
            response.route, response.model = named(path)
        return False

    async def _count_request(self, request: ClientRequest) -> bool:
        """Count the request against the rates of its key."""
        if request.method == "POST":
            request.response.caller.admit(time.monotonic(), has_counts=not request.endpoint)
        return False

    async def _answer_health(self, request: ClientRequest) -> bool:
        """Answer a health check by the state that `hfx serve` reports, and then by Triton's own readiness.

        This works also while the limits allow no other request. Any answer of Triton's other than 200 becomes a 503
        with a reason: from 26.01 on, Triton answers 400 without a body as soon as a process of a model has died.
        """
        if request.path not in (HEALTH, READY):
            return False
        await self._read_no_body(request)
        if fault := self.state.fault or await self._unready(request.client):
            raise Refusal(503, fault, [RETRY])
        await request.response.document(b"", [])
        return True

    async def _read_body(self, request: ClientRequest) -> bool:
        """Read the body and check that its JSON can be parsed safely."""
        share = request.share = self.in_progress.begin(request.client)
        reserve = partial(self.in_progress.reserve, share)
        limit = 0 if request.is_public else self.limits.body
        body = request.body = await read_body(request.receive, request.headers, limit, reserve)
        request.response.received = request.json_size = len(body)
        self.in_progress.admit(share)  # only now, so that slow bodies keep no other request out
        if request.has_binary_tensors:
            request.json_size = json_length(request.headers[HEAD_LENGTH], body)
        size = request.json_size
        reserve(await self.large_bodies.read(size, check_json, body[:size]))
        return False

    async def _answer_dialect(self, request: ClientRequest) -> bool:
        """Answer a request in a dialect, which may use a path of Triton's."""
        read = partial(self.large_bodies.read, request.json_size)
        if request.endpoint == b"infer" and not request.has_binary_tensors:
            request.target = await self._dialects.claim(request.path, request.body, read)
        if request.target is None:
            return False
        content = await read(parsed, request.body) if request.body else None
        if request.share is not None:
            self.in_progress.reserve(request.share, -len(request.body))
        # This frees the body. The memory of `content` has been counted in the request's share since its JSON was
        # checked (_read_body).
        request.body = b""
        await self._dialects.answer(request, request.target, content)
        return True

    async def _pass_to_triton(self, request: ClientRequest) -> bool:
        client, response, name = request.client, request.response, ""
        read = self.large_bodies.read
        if request.endpoint == b"infer":
            size = request.json_size
            name = request_name() if len(request.body) > LARGE_INFER else ""
            json_size = size if request.has_binary_tensors else None
            request.body, request.json_size = await read(size, binary_request, request.body, json_size, name)
        size = request.json_size
        await read(size, refuse_cancellation, request.body[:size])
        upstream, own = self._upstream, b""
        if request.path == METRICS:
            metrics, upstream = self.metrics, self._triton_metrics
            metrics.restarts, metrics.in_progress = self.state.restarts, self.in_progress.admitted
            metrics.connections = len(client.connections)
            own = metrics.text()
        sent = upstream.sent(request.method.encode(), request.path, request.body, forwarded_headers(request), client)
        reword = partial(reworded, models=self._dialects.described) if request.endpoint else None
        with self._dialects.ended_if_left(client, response.model, name):
            await pass_on(sent, response, own, reword)
        return True

    LAYERS = (
        _read_head,
        _check_page,
        _find_dialect,
        _check_caller,
        _pass_to_batches,
        _find_route,
        _count_request,
        _answer_health,
        _read_body,
        _answer_dialect,
        _pass_to_triton,
    )

    async def _read_no_body(self, request: ClientRequest) -> None:
        await read_body(request.receive, request.headers, 0, lambda size: None)

    async def _unready(self, client: ClientConnection) -> str:
        """Return why Triton itself is not ready, or an empty string if it is.

        If models are loaded on demand, Triton need only be live, because loads, even failed ones, make it unready.
        """
        try:
            async with self._upstream.sent(b"GET", LIVE if self._idle else READY, client=client) as connection:
                answer = (await connection.read())[:REASON_BYTES].decode(errors="replace")
                is_ready = connection.status == 200
        except UpstreamLost:
            return LOST
        return "" if is_ready else f"Triton says that not all of its models are ready. {answer}".rstrip()
