"""OpenAI's API: models, completions, chat completions, responses, embeddings and moderations.

The defaults are those of the model's own generation_config.json, also where OpenAI's defaults differ. A field that
can't be honoured is a 400 that names the field in `param`. Source: the OpenAPI description of api.openai.com/v1, 2026.
"""

from __future__ import annotations

import re
from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Route, routes
from hfx.front.dialects import (
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_moderations,
    openai_parameters,
    openai_responses,
)
from hfx.front.refusals import UNKNOWN_PATH, Refusal
from hfx.names import GENERATION_TASKS

TYPES = {429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


async def list_models(request: DialectRequest) -> dict[str, Any]:
    """GET /v1/models: list the served models."""
    return {"object": "list", "data": [_model(model) for model in await request.models()]}


async def get_model(request: DialectRequest) -> dict[str, Any]:
    """GET /v1/models/NAME: describe a served model."""
    return _model(await request.model())


def _model(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "hfx"}


async def completions(request: DialectRequest) -> Any:
    """POST /v1/completions: continue prompts."""
    fields = openai_parameters.without_ignored(request.fields())
    model = await request.named_model(fields, *GENERATION_TASKS)
    return await openai_completions.complete(request, openai_completions.PLAIN, model, fields)


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    code = UNKNOWN_PATH if refusal.reason == UNKNOWN_PATH else CODES.get(refusal.status)
    shape = {"message": refusal.message, "type": kind, "param": refusal.param or None, "code": code}
    return refusal.status, {"error": shape}


CONTINUED = "Texts that continue prompts; a stream on request."
LABELLED = "The labels of texts, as categories."
NEXT = "The next message of a conversation; a stream on request."
ROUTES = (
    Route("GET", "/v1/models", list_models, "The served models."),
    Route("GET", "/v1/models/{model}", get_model, "A served model."),
    *routes("POST", "v1/completions", completions, CONTINUED, openai_completions.PROMPTS),
    *routes("POST", "v1/chat/completions", openai_chat.chat_completions, NEXT, openai_chat.BODIES),
    *routes("POST", "v1/responses", openai_responses.responses, NEXT, openai_responses.BODY),
    *routes("POST", "v1/embeddings", openai_embeddings.embeddings, "The vectors of texts.", openai_embeddings.BODY),
    *routes(
        "POST",
        "v1/moderations",
        openai_moderations.moderations,
        "The labels of texts, as categories.",
        openai_moderations.BODY,
    ),
)
PATHS = re.compile(rb"/v1(?:/.*)?|/models/[^/]+/v1/.*")
DIALECT = Dialect("openai", ROUTES, error, "OpenAI", PATHS, has_batches=True)
