"""text-generation-inference's API: generate and generate_stream.

Such a server has one model. Here, the paths are for the only generator. For any other model they are below
/models/NAME, which is then the client's base URL. Source: text-generation-inference's own docs/openapi.json, 3.3.
"""

from __future__ import annotations

from typing import Any

from hfx.front.dialect import Dialect, DialectRequest, Events, routes
from hfx.front.dialects import generated_texts, huggingface
from hfx.front.dialects.pipelines import Inputs, inputs_of
from hfx.front.refusals import Refusal
from hfx.names import GENERATION_TASKS

VALIDATION = 422  # where other APIs have 400


async def generate(request: DialectRequest) -> dict[str, Any]:
    """POST /generate: generate a text."""
    [answer] = await generated_texts.generate(await _inputs(request))
    return {name: answer[name] for name in ("generated_text", "details") if name in answer}


async def generate_stream(request: DialectRequest) -> Events:
    """POST /generate_stream: generate a text, and return its tokens as server-sent events."""
    return generated_texts.stream(await _inputs(request))


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    status, content = huggingface.error(refusal)
    return VALIDATION if status == 400 else status, content


async def _inputs(request: DialectRequest) -> Inputs:
    fields = request.fields(generated_texts.BODY)
    fields.text("inputs")
    model = await request.model(*GENERATION_TASKS)
    model.check_task(*GENERATION_TASKS)
    return inputs_of(request, model, fields)


ROUTES = (
    *routes("POST", "generate", generate, "A text.", generated_texts.BODY),
    *routes("POST", "generate_stream", generate_stream, "A text as events.", generated_texts.BODY),
)
DIALECT = Dialect("text-generation-inference", ROUTES, error)
