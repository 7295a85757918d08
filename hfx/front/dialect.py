"""The parts that all HTTP dialects share: routes, requests and the kinds of answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hfx.front.inference import Inference
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Header, Refusal, dumped
from hfx.front.schemas import Schema
from hfx.front.settings import Limits
from hfx.strict_json import no_constant


@dataclass(frozen=True)
class DialectRequest:
    """A request in a dialect, and the objects with which a handler answers it.

    `model` is the model that the path names (empty: none) and `content` the body's JSON. `inference` calls models, and
    `files` reads their files. `limits` are those of the front. `id` is the request's id, for answers that contain one.
    """

    model: str
    content: Any
    inference: Inference
    files: ModelFiles
    limits: Limits
    id: str


@dataclass(frozen=True)
class Document:
    """An answer that is not JSON: its body, and the headers that describe it."""

    body: bytes
    headers: tuple[Header, ...]


Events = AsyncGenerator[bytes, None]  # a stream of server-sent events
Handler = Callable[[DialectRequest], Awaitable["bytes | Events | Document"]]


@dataclass(frozen=True)
class Route:
    """A method and a path, in which `{model}` stands for a model's name, and the `handler` of its requests.

    `summary` describes the route. `body` is the JSON Schema of the body of a POST. If the path is also Triton's,
    `is_own` tells the dialect's bodies from Triton's. If the route `is_public`, a request to it needs no API key and
    has no body.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: Schema = field(default_factory=dict)
    is_own: Callable[[bytes], bool] | None = None
    is_public: bool = False


@dataclass(frozen=True)
class Dialect:
    """The API of another server: its routes, and a function for the status and JSON of its errors.

    Errors at other paths that match `paths` have the same JSON.
    """

    name: str
    routes: tuple[Route, ...]
    error: Callable[[Refusal], tuple[int, Any]]
    paths: re.Pattern[bytes] = re.compile(rb"(?!)")


@dataclass(frozen=True)
class Target:
    """The target of a request: a dialect's route, and the model that the path names (empty: none)."""

    dialect: Dialect
    route: Route
    model: str


def routes(method: str, name: str, handler: Handler, summary: str, body: Schema) -> tuple[Route, Route]:
    """Return a route at /`name` for the only model of a task, and one below /models/MODEL for any model."""
    return (
        Route(method, f"/{name}", handler, summary, body),
        Route(method, f"/models/{{model}}/{name}", handler, summary, body),
    )


def parsed(body: bytes) -> Any:
    """Return the parsed JSON of `body`, whose depth guard.py has checked. Raises Refusal (400)."""
    try:  # decoded, because json.loads reads bytes in UTF-16 too, in which guard.py counts wrongly
        return json.loads(body.decode(), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {error}. Send one complete JSON object.") from None


def event(content: Any) -> bytes:
    """Encode data as a server-sent event."""
    return b"data: %b\n\n" % dumped(content)
