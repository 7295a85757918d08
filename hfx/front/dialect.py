"""What the HTTP dialects have in common: routes, requests, and the ways in which they can be answered."""

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
    """A request in a dialect: the model that its path names (empty: none), its JSON `content`, and what can answer it.

    `id` is the request's, for answers that carry one; `limits` are the front's.
    """

    model: str
    content: Any
    inference: Inference
    files: ModelFiles
    limits: Limits
    id: str


@dataclass(frozen=True)
class Document:
    """An answer that is not JSON: its body, and the headers that say how it is read."""

    body: bytes
    headers: tuple[Header, ...]


Events = AsyncGenerator[bytes, None]  # of a stream of server-sent events
Handler = Callable[[DialectRequest], Awaitable["bytes | Events | Document"]]


@dataclass(frozen=True)
class Route:
    """A method and path, where `{model}` stands for a model's name, and what answers there; `summary` says it.

    `body` is the JSON Schema of what is sent, of POST.
    `is_own` tells the dialect's bodies from Triton's, where the path is Triton's too. A request to an `is_public` one
    needs no API key, and has no body.
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
    """An API that clients of another server speak: its routes, and the status and JSON of its errors.

    Other paths that match `paths` get its errors, too.
    """

    name: str
    routes: tuple[Route, ...]
    error: Callable[[Refusal], tuple[int, Any]]
    paths: re.Pattern[bytes] = re.compile(rb"(?!)")


@dataclass(frozen=True)
class Target:
    """What a request is for: a dialect's route, and the model that its path names (empty: none)."""

    dialect: Dialect
    route: Route
    model: str


def routes(method: str, name: str, handler: Handler, summary: str, body: Schema) -> tuple[Route, Route]:
    """The path of the model that is served alone for the task, and that below /models/NAME."""
    return (
        Route(method, f"/{name}", handler, summary, body),
        Route(method, f"/models/{{model}}/{name}", handler, summary, body),
    )


def parsed(body: bytes) -> Any:
    """The JSON in `body`, whose depth is bounded (guard.py). Raises Refusal (400)."""
    try:  # as text: of bytes, json.loads reads UTF-16 too, in which guard.py counts nothing right
        return json.loads(body.decode(), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {error}. Send one complete JSON object.") from None


def event(content: Any) -> bytes:
    """Encode data as a server-sent event."""
    return b"data: %b\n\n" % dumped(content)
