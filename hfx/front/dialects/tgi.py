"""text-generation-inference's API: generate and generate_stream.

Such a server has one model. Here, the paths are for the only generator. For any other model they are below
/models/NAME, which is then the client's base URL. Source: text-generation-inference's own docs/openapi.json, 3.3.
"""

from __future__ import annotations

from typing import Any

from hfx.front.dialect import Dialect, DialectRequest, Events, routes
from hfx.front.dialects import huggingface
from hfx.front.fields import check_generator, known_fields, text
from hfx.front.refusals import Refusal, dumped
from hfx.names import GENERATION_TASKS

VALIDATION = 422  # where other APIs have 400


async def generate(request: DialectRequest) -> bytes:
    """POST /generate: generate a text."""
    [answer] = await huggingface.generate(await _inputs(request))
    return dumped({name: answer[name] for name in (huggingface.GENERATED_TEXT, "details") if name in answer})


async def generate_stream(request: DialectRequest) -> Events:
    """POST /generate_stream: generate a text, and return its tokens as server-sent events."""
    return huggingface.stream(await _inputs(request))


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    status, content = huggingface.error(refusal)
    return VALIDATION if status == 400 else status, content


async def _inputs(request: DialectRequest) -> huggingface.Inputs:
    fields = known_fields(request.content, huggingface.GENERATION)
    text(fields.get("inputs"), "inputs")
    catalog = request.inference.catalog
    model = await (catalog.model(request.model_name) if request.model_name else catalog.only(*GENERATION_TASKS))
    check_generator(model)
    return huggingface.inputs_of(request, model, fields)


DIALECT = Dialect(
    "text-generation-inference",
    (
        *routes("POST", "generate", generate, "A text.", huggingface.GENERATION),
        *routes("POST", "generate_stream", generate_stream, "A text as events.", huggingface.GENERATION),
    ),
    error,
)
