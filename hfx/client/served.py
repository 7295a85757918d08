"""Served models as objects of the class Model (hfx.answering), and other JSON APIs of their server, for commands."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Generator
from typing import Any, cast

from hfx import names
from hfx.answering import Answer, Model, Piece, Request, plain_values
from hfx.client.address import parse_address
from hfx.client.client import Client
from hfx.client.session import TruncationWarning
from hfx.client.settings import GenerationSettings, Settings, merged
from hfx.client.transport import run
from hfx.errors import ModelChanged, RequestRefused, ServerError, UsageError
from hfx.names import GENERATION_TASKS
from hfx.python_backends.engine.generation_settings import LISTS, from_text
from hfx.tasks import task_of


def served_model(client: Client, name: str) -> Model:
    """Return the model `name` of the client's server. Raises ServerError, and RequestRefused for an unknown task."""
    metadata = client.metadata(name)
    task = task_of(metadata)

    def answer(request: Request) -> Answer:
        return plain_values({key: value[0] for key, value in client.infer(name, request).items()})

    def stream(request: Request) -> Generator[Piece, None, None]:
        text, settings = _settings(request)
        with warnings.catch_warnings(), client.stream(name, text, settings) as pieces:
            warnings.simplefilter("ignore", TruncationWarning)  # each piece has the number of truncated tokens
            yield from pieces

    sha256 = client.model_sha256(name)

    def is_unchanged() -> bool:
        try:
            if not sha256 or client.model_sha256(name) == sha256:
                return True
        except (RequestRefused, ServerError):
            return False
        raise ModelChanged(
            f"{client.url} serves another model {name!r} than before.", "Serve the former one, or start a new job."
        )

    return Model(
        task,
        metadata,
        answer,
        stream if task in GENERATION_TASKS else None,
        client.max_in_flight,
        sha256=sha256,
        is_unchanged=is_unchanged,
    )


def _settings(request: Request) -> tuple[str, GenerationSettings]:
    """Return the text of a request, and its other inputs as settings."""
    values: dict[str, Any] = {
        name: each if name in LISTS else from_text(name, each[0]) for name, each in request.items()
    }
    return values.pop(names.TEXT_INPUT), merged(None, cast(Settings, values))


def json_api(client: Client) -> Callable[[str, Any], bytes]:
    """Return a function that sends JSON to a path of the client's server, and returns the body of the answer.

    The function has the client's retries and time limit, and raises ServerError. Raises UsageError for gRPC's address.
    """
    if parse_address(client.url).protocol != "http":
        raise UsageError(f"{client.url} is an address of gRPC, not of HTTP.", "Give http://HOST:PORT.")

    session = client._session
    transport: Any = session.transport  # of HTTP, which sends other requests, too

    def post(path: str, value: Any) -> bytes:
        body, deadline = json.dumps(value).encode(), session.deadline(None)
        content: bytes = run(session.retries.call(lambda: transport.post(path, body, deadline.left()), deadline))
        return content

    return post
