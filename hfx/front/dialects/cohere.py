"""Version 2 of Cohere's API: POST /v2/rerank and /v2/embed. The rerank of version 1 is in jina.py.

Source: the OpenAPI description of api.cohere.com (v2) and its Python client, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hfx.client import calls
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects.jina import QUERY, SHARED, best, check_shared, reranker, result
from hfx.front.fields import (
    Fields,
    check_cut,
    check_task,
    embedding_options,
    flag,
    known_fields,
    refuse_unsupported,
    shown,
    text,
    texts,
    whole_number,
)
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import body
from hfx.metadata import INT32_MAX
from hfx.names import DIMENSIONS, PROMPT_NAME, TEXT_INPUT, TOKENIZE_SUFFIX, Task

T = TypeVar("T")

META = {"api_version": {"version": "2"}}
# The purposes of vectors, each with the name of its prompt, which is used if a model has it.
INPUT_TYPES = {"search_query": "query", "search_document": "document", "classification": "", "clustering": ""}
# Fields of /v2/embed that hfx does not support, with the values that have no effect.
OF_EMBED: dict[str, tuple[Any, ...]] = {"embedding_types": (["float"],), "priority": (0,)}
CUTS = {"END": True, "NONE": False}


async def rerank(request: DialectRequest) -> bytes:
    """POST /v2/rerank: rank documents for a query, best first. Scores are sigmoids of the logits."""
    fields = known_fields(request.content, BODY)
    model = await reranker(request, fields, Task.TEXT_RANKING)
    check_shared(request, model, fields)
    documents = fields.get("documents")
    if not isinstance(documents, list):
        raise Refusal(400, f"documents is {shown(documents)}. Send a list of texts.", param="documents")
    sources = texts(documents, "documents")
    ranks = await best(request, model, fields, sources)
    has_text = flag(fields, "return_documents")  # some clients send it to both versions
    results = [result(rank) | ({"document": {"text": sources[rank.index]}} if has_text else {}) for rank in ranks]
    return dumped({"id": request.id, "results": results, "meta": META})


async def embed(request: DialectRequest) -> bytes:
    """POST /v2/embed: return the vectors of texts."""
    fields = known_fields(request.content, EMBED)
    refuse_unsupported(fields, OF_EMBED)
    model = await request.inference.catalog.model(request.model_name or text(fields.get("model"), "model"))
    check_task(model, Task.FEATURE_EXTRACTION)
    sources, width = fields.get("texts"), whole_number(fields, "output_dimension", 1, INT32_MAX, 0)
    if not isinstance(sources, list):
        raise Refusal(400, f"texts is {shown(sources)}. Send a list of texts.", param="texts")
    role = _choice(fields, "input_type", INPUT_TYPES)
    has_role = role in (request.files.settings(model, TOKENIZE_SUFFIX).get("prompts") or {})
    chosen = {DIMENSIONS: width or None, PROMPT_NAME: role if has_role else None}
    call = calls.embed(model.name, **embedding_options(model, chosen))
    request.inference.names |= {TEXT_INPUT: "texts", DIMENSIONS: "output_dimension"}
    results = await request.inference.rows(model, [call(source) for source in texts(sources, "texts")])
    check_cut({"truncate": _choice(fields, "truncate", CUTS, "END")}, results, default=True)
    if width not in (0, len(results[0].vector)):
        message = f"output_dimension is {width}; the model's vectors have {len(results[0].vector)}. Leave it out."
        raise Refusal(400, message, param="output_dimension")
    vectors = [result.vector.tolist() for result in results]
    kind = {"response_type": "embeddings_by_type"}
    return dumped({"id": request.id, "embeddings": {"float": vectors}, "texts": sources, "meta": META, **kind})


def _choice(fields: Fields, name: str, choices: Mapping[str, T], default: str | None = None) -> T:
    """Return the meaning of a field's value in `choices`. Raises Refusal for a value that is not in `choices`."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise Refusal(400, f"{name} is {shown(value)}. Send {' or '.join(choices)}.", param=name)
    return choices[value]


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    return refusal.status, {"message": refusal.message}


BODY = body(
    "query documents",
    **{**QUERY, "documents": list[str]},
    return_documents=bool,
    **SHARED,
)
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
DIALECT = Dialect(
    "cohere",
    (
        *routes("POST", "v2/rerank", rerank, "Documents ranked for a query.", BODY),
        *routes("POST", "v2/embed", embed, "The vectors of texts.", EMBED),
    ),
    error,
)
