"""Requests in dialects: found by their paths, handed to the dialect's function, and its answer sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hfx.errors import HfxError
from hfx.front.catalog import Catalog
from hfx.front.dialect import Dialect, DialectRequest, Document, Events, Route, event, parsed
from hfx.front.failures import refused
from hfx.front.inference import Inference, fetch
from hfx.front.model_files import ModelFiles
from hfx.front.openapi import description
from hfx.front.refusals import Header, Refusal, error_object
from hfx.front.response import Response
from hfx.front.routes import NAME
from hfx.front.settings import Limits
from hfx.front.upstream import Upstream

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

STREAM_HEAD: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True)
class Target:
    """What a request is for: a dialect's route, and the model that its path names (empty: none)."""

    dialect: Dialect
    route: Route
    model: str


class DialectServer:
    """Answers requests in `dialects` with the models behind `upstream`, whose files are in the folder `repository`."""

    def __init__(self, dialects: Sequence[Dialect], upstream: Upstream, repository: str, limits: Limits) -> None:
        self._limits = limits
        dialects = (*dialects, _about(dialects))
        self._rows = [(_pattern(route), route, dialect) for dialect in dialects for route in dialect.routes]
        self._upstream = upstream
        self._catalog = Catalog(partial(fetch, upstream))
        self._files = ModelFiles(repository)

    def find(self, method: str, path: bytes) -> Target | None:
        """What a request is for; None where its path is no dialect's. Raises Refusal (405) for another method."""
        matches = [
            (found, route, dialect)
            for regex, route, dialect in self._rows
            if route.is_own is None and (found := regex.fullmatch(path))
        ]
        for found, route, dialect in matches:
            if route.method == method:
                return _target(dialect, route, found)
        if matches:
            allowed = ", ".join(route.method for _, route, _ in matches)
            raise Refusal(
                405, f"This path takes {allowed} only. Send it with {allowed}.", [(b"allow", allowed.encode())]
            )
        return None

    async def claim(self, path: bytes, body: bytes) -> Target | None:
        """What a POST to a path of Triton's is for, where `body` is a dialect's and the model one of hfx's."""
        for regex, route, dialect in self._rows:
            if route.is_own is not None and (found := regex.fullmatch(path)) and route.is_own(body):
                target = _target(dialect, route, found)
                with suppress(HfxError):  # Triton says the rest
                    await self._catalog.model(target.model)
                    return target
        return None

    async def answer(self, target: Target, body: bytes, client: ClientConnection, response: Response) -> None:
        """Answer a request with `body`. Raises Refusal, unless the answer has begun."""
        request = DialectRequest(
            target.model,
            parsed(body) if body else None,
            Inference(self._upstream, self._catalog, client),
            self._files,
            self._limits,
            response.request_id.decode(),
        )
        try:
            answer = await target.route.handler(request)
            if isinstance(answer, bytes):
                await response.json(answer)
            elif isinstance(answer, Document):
                await response.document(answer.body, answer.headers)
            else:
                await _send_events(answer, response, target.dialect)
        except HfxError as error:
            raise refused(error) from None


def _about(dialects: Sequence[Dialect]) -> Dialect:
    """The description of all paths, as a path of its own."""

    async def describe(request: DialectRequest) -> bytes:
        return description((*dialects, about))

    about = Dialect("hfx", (Route("GET", "/openapi.json", describe, "This description."),), error_object)
    return about


async def _send_events(events: Events, response: Response, dialect: Dialect) -> None:
    """Send a stream; what fails before its first event has a status of its own, and is an event later."""
    async with aclosing(events) as pieces:
        first = await anext(pieces)
        await response.start(200, STREAM_HEAD)
        await response.body(first, more=True)
        try:
            async for piece in pieces:
                await response.body(piece, more=True)
        except (Refusal, HfxError) as error:
            refusal = error if isinstance(error, Refusal) else refused(error)
            await response.body(event(dialect.error(refusal)[1]), more=True)
    await response.body(b"", more=False)


def _target(dialect: Dialect, route: Route, found: re.Match[bytes]) -> Target:
    return Target(dialect, route, unquote((found.groupdict().get("model") or b"").decode()))


def _pattern(route: Route) -> re.Pattern[bytes]:
    before, name, after = route.path.partition("{model}")
    model = b"(?P<model>%b)" % NAME if name else b""
    return re.compile(re.escape(before.encode()) + model + re.escape(after.encode()))
