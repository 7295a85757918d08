"""OpenAI's API: models, completions, chat completions and embeddings.

The defaults are those of the model's own generation_config.json, also where OpenAI's defaults differ. A field that
can't be honoured is a 400 that names the field in `param`. Source: the OpenAPI description of api.openai.com/v1, 2026.
"""

from __future__ import annotations

import re
from typing import Any

from hfx.front import chat, vectors
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, Route, routes
from hfx.front.dialects import openai_completions
from hfx.front.fields import Fields
from hfx.front.refusals import UNKNOWN_PATH, Refusal, invalid
from hfx.front.schemas import body
from hfx.names import GENERATION_TASKS, Task

IGNORED = {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
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
    fields = _fields(request)
    model = await request.named_model(fields, *GENERATION_TASKS)
    return await openai_completions.complete(request, openai_completions.PLAIN, model, fields)


async def chat_completions(request: DialectRequest) -> Any:
    """POST /v1/chat/completions: generate the next message of a conversation."""
    fields = _fields(request)
    model = await request.named_model(fields, *GENERATION_TASKS)
    options = chat.checked_options(fields.pop("chat_template_kwargs", None))
    prompt = await chat.chat_prompt(request.files, model, fields.pop("messages", None), options=options)
    fields = Fields(chat.chat_settings(model, fields))
    return await openai_completions.complete(request, openai_completions.CHAT, model, fields, prompt)


async def embeddings(request: DialectRequest) -> dict[str, Any]:
    """POST /v1/embeddings: return the vectors of texts."""
    fields = _fields(request)
    model = await request.named_model(fields, Task.FEATURE_EXTRACTION)
    texts = input_texts(fields)
    request.name_texts("input")
    fields.refuse_unknown(EMBEDDINGS["properties"])
    rows = await vectors.embed(request, model, fields, texts, truncate=True)
    tokens = await request.count_tokens(model, request.files.prompted(model, texts, **fields.prompt()))
    encoding = fields.get("encoding_format") or "float"
    data = [
        {"object": "embedding", "index": index, "embedding": vectors.vector_json(row, encoding)}
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def _fields(request: DialectRequest) -> Fields:
    """Return the body's fields, without IGNORED: their values may be large, and would be kept for the whole request."""
    fields = request.fields()
    for name in IGNORED:
        fields.pop(name, None)
    return fields


def input_texts(fields: Fields) -> list[str]:
    """Return the texts in `input`. Raises Refusal (400) for token ids, which may come from any tokenizer."""
    value = fields.get("input")
    if isinstance(value, list) and value and isinstance(value[0], (int, list)):
        fix = "Send texts: LangChain does so with OpenAIEmbeddings(check_embedding_ctx_length=False)."
        raise invalid(f"input has token ids, which are not supported. {fix}", "input")
    return fields.texts("input")


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    code = UNKNOWN_PATH if refusal.reason == UNKNOWN_PATH else CODES.get(refusal.status)
    shape = {"message": refusal.message, "type": kind, "param": refusal.param or None, "code": code}
    return refusal.status, {"error": shape}


EMBEDDINGS = body(
    "model input",
    model=str,
    input=str | list[str],
    encoding_format={"enum": ["float", "base64"]},
    dimensions=int,
    prompt_name=str,
    prompt=str,
)
CONTINUED = "Texts that continue prompts; a stream on request."
NEXT = "The next message of a conversation; a stream on request."
ROUTES = (
    Route("GET", "/v1/models", list_models, "The served models."),
    Route("GET", "/v1/models/{model}", get_model, "A served model."),
    *routes("POST", "v1/completions", completions, CONTINUED, openai_completions.PROMPTS),
    *routes("POST", "v1/chat/completions", chat_completions, NEXT, openai_completions.MESSAGES),
    *routes("POST", "v1/embeddings", embeddings, "The vectors of texts.", EMBEDDINGS),
)
PATHS = re.compile(rb"/v1(?:/.*)?|/models/[^/]+/v1/.*")
DIALECT = Dialect("openai", ROUTES, error, "OpenAI", PATHS, has_batches=True)
