"""Finds the dialect of a request by its path, calls the dialect's handler, and sends the answer.

The OpenAPI description of all paths is made here, too.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from functools import lru_cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from hfx.errors import HfxError
from hfx.front.catalog import Catalog
from hfx.front.dialect import Dialect, DialectRequest, Document, Events, Route, Target
from hfx.front.inference import Inference, ended_if_left, fetch
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Header, Refusal, dumped, error_object, refused, wrong_method
from hfx.front.request import ClientRequest
from hfx.front.response import Response
from hfx.front.routes import TRITON_PATHS
from hfx.front.schemas import TRITON_BODIES, Schema
from hfx.front.settings import Limits
from hfx.front.upstream import Upstream

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection
    from hfx.front.idle import IdleModels

PARAMETER = re.compile(r"{(\w+)}")
TRUNCATED = b"x-hfx-truncated-tokens"  # the header with the tokens, at least, that were cut off all texts of a request
STREAM_HEAD: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class DialectServer:
    """Answers requests in `dialects` with the models behind `upstream`, whose files are in the folder `repository`.

    `others` are paths that are only described here and answered elsewhere: method, path, summary, schema of the body.
    `idle` manages the models that are loaded on demand.
    """

    def __init__(
        self,
        dialects: Sequence[Dialect],
        upstream: Upstream,
        repository: str,
        limits: Limits,
        others: Sequence[tuple[str, str, str, Schema]] = (),
        idle: IdleModels | None = None,
    ) -> None:
        self._limits = limits
        dialects = (*dialects, _about(dialects, others))
        self._rows = [(route.pattern, route, dialect) for dialect in dialects for route in dialect.routes]
        self._upstream = upstream
        self._catalog = Catalog(partial(fetch, upstream), idle)
        self._files = ModelFiles(repository)
        self.described = self._catalog.model
        self.find = lru_cache(1024)(self._find)  # `_find` tries each of a hundred patterns

    def _find(self, method: str, path: bytes) -> Target | None:
        """Return the target of a request, or None if no dialect has the path.

        Raises Refusal (405) if a dialect has the path, but not with this method.
        """
        matches = [
            (found, route, dialect)
            for regex, route, dialect in self._rows
            if route.is_own is None and (found := regex.fullmatch(path))
        ]
        for found, route, dialect in matches:
            if route.method == method:
                return _target(dialect, route, found)
        if matches:
            raise wrong_method([route.method for _, route, _ in matches])
        return None

    def error(self, path: bytes, refusal: Refusal) -> tuple[int, Any]:
        """Return the status and JSON of a refusal at a path without a route, by the dialect whose `paths` match."""
        like = next((dialect for _, _, dialect in self._rows if dialect.paths.fullmatch(path)), None)
        return (like.error if like else error_object)(refusal)

    async def claim(self, path: bytes, body: bytes, read: Callable[..., Awaitable[bool]]) -> Target | None:
        """Return the target of a POST to a path of Triton's, if `body` is a dialect's and the model has a task of hfx.

        `read` calls a function that reads the body, outside of the event loop if that takes long.
        """
        for regex, route, dialect in self._rows:
            if route.is_own is not None and (found := regex.fullmatch(path)) and await read(route.is_own, body):
                target = _target(dialect, route, found)
                with suppress(HfxError, Refusal):  # the request goes to Triton, which reports the error
                    await self._catalog.model(target.model)
                    return target
        return None

    def ended_if_left(self, client: ClientConnection, model: str, name: str) -> AbstractContextManager[None]:
        """Return a context that ends the request `name` of Triton's protocol if its client disconnects."""
        return ended_if_left(self._upstream, self._catalog, client, model, name)

    async def answer(self, request: ClientRequest, target: Target, content: Any) -> None:
        """Answer a request for `target` with the JSON `content`. Raises Refusal, unless the answer has begun."""
        response = request.response
        name, most = response.request_id.decode(), self._limits.requests
        inference = Inference(
            self._upstream, self._catalog, self._files, request.client, response.caller, request.trace.headers
        )
        dialect_request = DialectRequest(target.model, content, name, most, self._files, inference)
        try:
            answer = await target.route.handler(dialect_request)
            if inference.truncated_tokens:
                response.headers.append((TRUNCATED, b"%d" % inference.truncated_tokens))
            if isinstance(answer, Document):
                await response.document(answer.body, answer.headers)
            elif isinstance(answer, AsyncGenerator):
                await _send_events(answer, response, target.dialect)
            else:
                await response.json(answer if isinstance(answer, bytes) else dumped(answer))
        except HfxError as error:
            raise refused(error) from None
        finally:
            response.model = inference.model or response.model
            response.input_tokens, response.output_tokens = inference.input_tokens, inference.output_tokens
            response.caller.spend(-inference.held)  # the used tokens are counted with the response


def _about(dialects: Sequence[Dialect], others: Sequence[tuple[str, str, str, Schema]]) -> Dialect:
    """Return a dialect whose only path answers with the description of all paths."""

    async def describe(request: DialectRequest) -> bytes:
        return description((*dialects, about), others)

    route = Route("GET", "/openapi.json", describe, "This description.", is_public=True)
    about = Dialect("hfx", (route,), error_object)
    return about


async def _send_events(events: Events, response: Response, dialect: Dialect) -> None:
    """Send a stream. A failure before the first event is raised, for its own status; a later one becomes an event."""
    async with aclosing(events) as pieces:
        first = await anext(pieces)
        await response.start(200, STREAM_HEAD)
        await response.body(_event(first), more=True)
        try:
            async for piece in pieces:
                await response.body(_event(piece), more=True)
        except (Refusal, HfxError) as error:
            refusal = error if isinstance(error, Refusal) else refused(error)
            await response.body(_event(dialect.error(refusal)[1]), more=True)
    await response.body(b"", more=False)


def _event(content: Any) -> bytes:
    """Return a server-sent event with the JSON `content`. Bytes are a whole event."""
    return content if isinstance(content, bytes) else b"data: %b\n\n" % dumped(content)


def _target(dialect: Dialect, route: Route, found: re.Match[bytes]) -> Target:
    return Target(dialect, route, unquote((found.groupdict().get("model") or b"").decode()))


def description(dialects: Sequence[Dialect], others: Sequence[tuple[str, str, str, Schema]] = ()) -> bytes:
    """Return the OpenAPI 3.1 description of the paths of Triton, of `dialects` and of `others`."""
    rows = [
        *(("Triton", *row, TRITON_BODIES.get(row[1].rpartition("/")[2], {})) for row in TRITON_PATHS),
        *(("openai", *row) for row in others),
        *(
            (each.name, route.method, route.path, route.summary, route.body)
            for each in dialects
            for route in each.routes
        ),
    ]
    paths: dict[str, dict[str, Any]] = {}
    for tag, method, path, summary, body in rows:
        operations = paths.setdefault(path, {})
        if (shared := operations.get(method.lower())) is None:
            operations[method.lower()] = _operation(tag, path, summary, body)
        else:  # the path is Triton's too
            shared["tags"].append(tag)
            shared["summary"] += f" {tag}: {summary}"
    for path in ("/health", *(route.path for each in dialects for route in each.routes if route.is_public)):
        paths[path]["get"]["security"] = []
    titles = {dialect.name: dialect.title or dialect.name for dialect in dialects}
    first, *rest = titles  # Triton's own paths come second
    content = {
        "openapi": "3.1.0",
        "info": {"title": "hfx serve", "version": version("hfx")},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
        "tags": [{"name": name, "description": titles.get(name, name)} for name in (first, "Triton", *rest)],
        "paths": dict(sorted(paths.items())),
    }
    return dumped(content)


def _operation(tag: str, path: str, summary: str, body: Schema) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "tags": [tag],
        "responses": {"200": {"description": "The answer."}, "default": {"description": "An error in JSON."}},
    }
    if names := PARAMETER.findall(path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if body:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}, "required": True}
    return operation
