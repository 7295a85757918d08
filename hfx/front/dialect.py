"""What the HTTP dialects have in common: routes, requests, and the ways in which they can be answered."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hfx.client.settings import GenerationSettings
from hfx.errors import HfxError, UsageError
from hfx.front.catalog import ServedModel
from hfx.front.failures import refused, refused_setting
from hfx.front.inference import Inference
from hfx.front.refusals import Refusal, dumped
from hfx.front.tokenizers import Tokenizers
from hfx.metadata import check_text
from hfx.names import GENERATION_TASKS, Task
from hfx.python_backends.engine.errors import InvalidRequest
from hfx.python_backends.engine.generation_settings import SETTINGS, checked

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class DialectRequest:
    """A request in a dialect: the model that its path names (empty: none), its JSON, and what can answer it.

    `id` is the request's, for answers that carry one.
    """

    model: str
    fields: Any
    inference: Inference
    tokenizers: Tokenizers
    id: str = ""


Events = AsyncGenerator[bytes, None]  # of a stream of server-sent events
Handler = Callable[[DialectRequest], Awaitable["bytes | Events"]]


@dataclass(frozen=True)
class Route:
    """A method and path, where `{model}` stands for a model's name, and what answers there; `summary` says it."""

    method: str
    path: str
    handler: Handler
    summary: str


@dataclass(frozen=True)
class Dialect:
    """An API that clients of another server speak: its routes, and the JSON of its errors."""

    name: str
    routes: tuple[Route, ...]
    error: Callable[[Refusal], Any]


def parsed(body: bytes) -> Any:
    """The JSON in `body`, whose depth is bounded (guard.py). Raises Refusal (400)."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {error}. Send one complete JSON object.") from None


def object_fields(request: DialectRequest) -> dict[str, Any]:
    """The request's JSON object. Raises Refusal (400) for any other JSON."""
    if not isinstance(request.fields, dict):
        raise Refusal(400, f"The body is of type {type(request.fields).__name__}. Send a JSON object.")
    return request.fields


def text(value: Any, param: str) -> str:
    """`value` when it is a text. Raises Refusal (400)."""
    try:
        return check_text(value, param)
    except UsageError as error:
        raise Refusal(400, f"{error.message} {error.fix}", param=param) from None


def texts(value: Any, param: str) -> list[str]:
    """The texts of a value that is one, or a list of at least one. Raises Refusal (400)."""
    if isinstance(value, str):
        return [text(value, param)]
    if not isinstance(value, list) or not value:
        raise Refusal(400, f"{param} is {shown(value)}. Send a text, or a list of texts.", param=param)
    return [text(item, param) for item in value]


def whole_number(fields: Fields, name: str, low: int, high: int, default: int) -> int:
    """A whole number of `fields` from `low` to `high`. Raises Refusal (400)."""
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise Refusal(400, f"{name} is {shown(value)}. Send a whole number from {low} to {high}.", param=name)
    return value


def flag(fields: Fields, name: str, default: bool = False) -> bool:
    """A boolean of `fields`. Raises Refusal (400)."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(400, f"{name} is {shown(value)}. Send true or false.", param=name)
    return default if value is None else value


def generation_settings(fields: Fields) -> GenerationSettings:
    """The settings that `fields` name; what is null or absent is the model's own. Raises Refusal (400)."""
    try:
        settings = checked(fields)
        unserved = next((name for name in settings if not SETTINGS[name].dtype), None)
        if unserved is not None:
            raise InvalidRequest(unserved, settings[unserved], "nothing: an answer has one text")
        return GenerationSettings(**settings)
    except InvalidRequest as error:
        raise refused_setting(error) from None
    except HfxError as error:
        raise refused(error) from None


def check_task(model: ServedModel, *tasks: Task, param: str = "model") -> None:
    """Raise Refusal (400) unless `model` is for one of `tasks`."""
    if model.task not in tasks:
        wanted = " or ".join(sorted(tasks))
        message = f"The model {model.name!r} is for {model.task}, not for {wanted}. Name a model of that task."
        raise Refusal(400, message, param=param)


def check_generator(model: ServedModel) -> None:
    """Raise Refusal (400) unless `model` generates texts."""
    check_task(model, *GENERATION_TASKS)


def event(content: Any) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % dumped(content)


def shown(value: Any) -> str:
    """`value` as messages show it."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
