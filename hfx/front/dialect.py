"""The parts that all HTTP dialects share: routes, requests with their fields, and the kinds of answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hfx.client.calls import Call
from hfx.client.results import Generation, Piece
from hfx.client.settings import GenerationSettings
from hfx.front.catalog import ServedModel
from hfx.front.fields import Fields
from hfx.front.guard import check_json
from hfx.front.inference import Inference, in_order, interleaved
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Header, Refusal
from hfx.front.routes import NAME
from hfx.front.schemas import Schema
from hfx.names import TEXT_INPUT, Task
from hfx.strict_json import no_constant

Item = TypeVar("Item")
Result = TypeVar("Result")
Prompt = tuple[str, GenerationSettings]


@dataclass(frozen=True)
class DialectRequest:
    """A request in a dialect. A handler answers it with these methods.

    `model_name` is the model that the path names (empty: none), and `content` the body's JSON. `id` is the request's
    id, for answers that contain one. `most_requests` is the number of requests that the front answers at a time.
    `files` has the models' settings and tokenizers. `inference` sends the calls to Triton.
    """

    model_name: str
    content: Any
    id: str
    most_requests: int
    files: ModelFiles
    inference: Inference

    @property
    def names(self) -> dict[str, str]:
        """The caller's names of fields by hfx's own names. A model's refusals name the caller's field."""
        return self.inference.names

    def name_texts(self, field: str) -> None:
        """Set the name of the caller's field that has the texts."""
        self.names[TEXT_INPUT] = field

    def fields(self, body: Schema | None = None) -> Fields:
        """Take the fields out of the body, which must be a JSON object.

        Raises Refusal (400) for a field that the schema `body` does not have.
        """
        content = Fields.of(self.content)
        self.content.clear()  # so that a value that a handler removes is freed
        if body is not None:
            content.refuse_unknown(body["properties"])
        return content

    async def models(self) -> list[ServedModel]:
        """Return all models that the server has."""
        return await self.inference.catalog.models()

    async def model(self, *tasks: Task) -> ServedModel:
        """Return the model that the path names, whatever its task, or else the only model for `tasks` (none: any).

        Raises ModelUnknown, and RequestRefused if there is no such model or if there are several.
        """
        catalog = self.inference.catalog
        return await (catalog.model(self.model_name) if self.model_name else catalog.only(*tasks))

    async def named_model(self, fields: Fields, *tasks: Task) -> ServedModel:
        """Return the model that the path names, or else the field `model`. Raises Refusal unless it is for `tasks`."""
        model = await self.inference.catalog.model(self.model_name or fields.text("model"))
        model.check_task(*tasks)
        return model

    async def chosen_model(self, fields: Fields, *tasks: Task) -> ServedModel:
        """Return the model that the path or the field `model` names, or the only model for `tasks`.

        Raises Refusal for a model of another task, and RequestRefused as `model` does.
        """
        if self.model_name or fields.get("model") is not None:
            return await self.named_model(fields, *tasks)
        return await self.model(*tasks)

    async def rows(
        self, model: ServedModel, call: Callable[[Item], Call[Result]], items: Iterable[Item]
    ) -> list[Result]:
        """Return the results of `call` for each item, such as a text, in order."""
        return await self.inference.rows(model, [call(item) for item in items])

    async def generate(self, model: ServedModel, texts: Iterable[Prompt]) -> list[Generation]:
        """Generate a text for each prompt with its settings."""
        return await in_order([self.inference.generate(model, *text) for text in texts])

    def pieces(self, model: ServedModel, texts: Iterable[Prompt]) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield the pieces of generated texts as they arrive, each with the number of its text."""
        return interleaved([self.inference.pieces(model, *text) for text in texts])

    async def tokenized(
        self, model: ServedModel, texts: list[str], use: Callable[[str, Any], Result], special: bool = True
    ) -> list[Result]:
        """Return the results of `use`, which is called with each text and its tokenizers.Encoding."""
        return await self.files.tokenized(model, texts, use, special, self.inference.has_left)

    async def count_tokens(self, model: ServedModel, texts: list[str]) -> int:
        """Return the number of tokens that an encoder reads of `texts`, and count them as the request's."""
        self.inference.input_tokens = await self.files.count(model, texts, self.inference.has_left)
        return self.inference.input_tokens


@dataclass(frozen=True)
class Document:
    """An answer that is not JSON: its body, and the headers that describe it."""

    body: bytes
    headers: tuple[Header, ...]


Events = AsyncGenerator[Any, None]  # a stream of server-sent events: JSON, or bytes of whole events
# A handler returns JSON, the bytes of JSON, a stream, or a document.
Handler = Callable[[DialectRequest], Awaitable[Any]]


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

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """The pattern of the route's paths. Its group `model` is the model's name, quoted."""
        before, name, after = self.path.partition("{model}")
        model = b"(?P<model>%b)" % NAME if name else b""
        return re.compile(re.escape(before.encode()) + model + re.escape(after.encode()))


@dataclass(frozen=True)
class Dialect:
    """The API of another server: its routes, and a function for the status and JSON of its errors.

    `title` is its name for readers, if that is another. Errors at other paths that match `paths` have the same JSON.
    `has_batches` is whether batches may have requests in this dialect. For that, its answers depend on the request's
    body alone, and a request that samples has its `seed` at the top level, where the batch can set it.
    """

    name: str
    routes: tuple[Route, ...]
    error: Callable[[Refusal], tuple[int, Any]]
    title: str = ""
    paths: re.Pattern[bytes] = re.compile(rb"(?!)")
    has_batches: bool = False


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


def parsed_text(text: str) -> Any:
    """Return the parsed JSON of a text within a body. Raises Refusal (400, 413)."""
    encoded = text.encode()
    check_json(encoded)
    return parsed(encoded)
