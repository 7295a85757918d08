"""Cohere's second API for rerankers: POST /v2/rerank. The first one is that of jina.py.

Source: the OpenAPI description of api.cohere.com (v2) and its Python client, 2026.
"""

from __future__ import annotations

from typing import Any

from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects.jina import QUERY, best, reranker, result
from hfx.front.fields import Fields, flag, json_object, refuse_unknown, refuse_unsupported, shown, texts, whole_number
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import BOOLEAN, OBJECT, TEXT, WHOLE, array, body
from hfx.metadata import INT32_MAX
from hfx.names import TOKENIZE_SUFFIX, Task

# Fields that no model here has: the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {"relevant_spans": ({"enabled": False},), "priority": (0,)}
MOST_TOKENS = "max_tokens_per_doc"
META = {"api_version": {"version": "2"}}


async def rerank(request: DialectRequest) -> bytes:
    """POST /v2/rerank: the documents that answer a query, best first; scores are sigmoids of the logits."""
    fields = json_object(request.content)
    refuse_unknown(fields, BODY["properties"])
    refuse_unsupported(fields, NEUTRAL)
    model = await reranker(request, fields, Task.TEXT_RANKING)
    _check_length(request, model, fields)
    documents = fields.get("documents")
    if not isinstance(documents, list):
        raise Refusal(400, f"documents is {shown(documents)}. Send a list of texts.", param="documents")
    sources = texts(documents, "documents")
    ranks = await best(request, model, fields, sources)
    has_text = flag(fields, "return_documents")  # of clients that send it to both versions
    results = [result(rank) | ({"document": {"text": sources[rank.index]}} if has_text else {}) for rank in ranks]
    return dumped({"id": request.id, "results": results, "meta": META})


def _check_length(request: DialectRequest, model: ServedModel, fields: Fields) -> None:
    """Raise Refusal for documents that are to be cut before the model cuts them."""
    if fields.get(MOST_TOKENS) is None:
        return
    read = request.files.settings(model, TOKENIZE_SUFFIX)["max_length"]
    if whole_number(fields, MOST_TOKENS, 1, INT32_MAX, read) < read:
        message = f"{MOST_TOKENS} is {fields[MOST_TOKENS]}; models cut a query and its document together, after {read}"
        raise Refusal(400, f"{message} tokens here. Send {read} or more, or leave it out.", param=MOST_TOKENS)


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and JSON of an error."""
    return refusal.status, {"message": refusal.message}


BODY = body(
    "query documents",
    **{**QUERY, "documents": array(TEXT)},
    max_tokens_per_doc=WHOLE,
    return_documents=BOOLEAN,
    relevant_spans=OBJECT,
    priority=WHOLE,
)
DIALECT = Dialect("cohere", routes("POST", "v2/rerank", rerank, "Documents ranked for a query.", BODY), error)
