"""Version 2 of Cohere's API: POST /v2/rerank and /v2/embed. The rerank of version 1 is in jina.py.

Source: the OpenAPI description of api.cohere.com (v2) and its Python client, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hfx.front import vectors
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects.jina import QUERY, SHARED, best, check_shared, reranker, result
from hfx.front.fields import Fields
from hfx.front.refusals import Refusal
from hfx.front.schemas import body
from hfx.names import DIMENSIONS, Task

T = TypeVar("T")

META = {"api_version": {"version": "2"}}
# The purposes of vectors, each with the name of its prompt, which is used if a model has it.
INPUT_TYPES = {"search_query": "query", "search_document": "document", "classification": "", "clustering": ""}
# Fields of /v2/embed that hfx does not support, with the values that have no effect.
OF_EMBED: dict[str, tuple[Any, ...]] = {"embedding_types": (["float"],), "priority": (0,)}
CUTS = {"END": True, "NONE": False}


async def rerank(request: DialectRequest) -> dict[str, Any]:
    """POST /v2/rerank: rank documents for a query, best first. Scores are sigmoids of the logits."""
    fields = request.fields(BODY)
    model = await reranker(request, fields, Task.TEXT_RANKING)
    check_shared(request, model, fields)
    texts = fields.listed("documents")
    ranks = await best(request, model, fields, texts)
    has_text = fields.flag("return_documents")  # some clients send it to both versions
    results = [result(rank) | ({"document": {"text": texts[rank.index]}} if has_text else {}) for rank in ranks]
    return {"id": request.id, "results": results, "meta": META}


async def embed(request: DialectRequest) -> dict[str, Any]:
    """POST /v2/embed: return the vectors of texts."""
    fields = request.fields(EMBED)
    fields.refuse_unsupported(OF_EMBED)
    model = await request.named_model(fields, Task.FEATURE_EXTRACTION)
    width = fields.number("output_dimension", 0)
    texts = fields.listed("texts")
    role = _choice(fields, "input_type", INPUT_TYPES)
    has_role = role in (request.files.text_settings(model).get("prompts") or {})
    cut = _choice(fields, "truncate", CUTS, "END")
    options = Fields(dimensions=width or None, prompt_name=role if has_role else None, truncate=cut)
    request.names[DIMENSIONS] = "output_dimension"
    request.name_texts("texts")
    rows = await vectors.embed(request, model, options, texts)
    answer = {"id": request.id, "embeddings": {"float": rows.tolist()}, "texts": texts, "meta": META}
    return {**answer, "response_type": "embeddings_by_type"}


def _choice(fields: Fields, name: str, choices: Mapping[str, T], default: str | None = None) -> T:
    """Return the meaning of a field's value in `choices`. Raises Refusal for a value that is not in `choices`."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise fields.refusal(name, f"Send {' or '.join(choices)}.")
    return choices[value]


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    return refusal.status, {"message": refusal.message}


BODY = body("query documents", **{**QUERY, "documents": list[str]}, return_documents=bool, **SHARED)
EMBED = body(
    "model texts input_type",
    model=str,
    texts=list[str],
    input_type=str,
    embedding_types=list[str],
    output_dimension=int,
    truncate=str,
    priority=int,
)
ROUTES = (
    *routes("POST", "v2/rerank", rerank, "Documents ranked for a query.", BODY),
    *routes("POST", "v2/embed", embed, "The vectors of texts.", EMBED),
)
DIALECT = Dialect("cohere", ROUTES, error, "Cohere", has_batches=True)
