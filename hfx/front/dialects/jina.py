"""POST /v1/rerank, the API for rerankers that Jina, vLLM and version 1 of Cohere's API have at the same path.

Where they differ, Jina's defaults apply: the documents are returned. Sources: the OpenAPI descriptions of api.jina.ai
and api.cohere.com (v1), 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfx.client.results import Rank
from hfx.front import ranking
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.fields import Fields
from hfx.front.refusals import Refusal, invalid
from hfx.front.schemas import array, body, either
from hfx.names import Task

# Fields of Cohere, Jina and vLLM, with the values that request what hfx does anyway: a document is its text, of which
# the model reads one part. All paths for re-ranking and scoring take them.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "max_chunks_per_doc": (1,),
    "mm_processor_kwargs": ({},),
    "padding": ("do_not_pad",),
    "priority": (0,),
    "rank_fields": (["text"],),
    "relevant_spans": ({"enabled": False},),
    "return_embeddings": (False,),
    "truncation": (True, False),
    "truncation_side": ("right",),
}
# Numbers of tokens at which texts are cut, with the value that means the model's own number.
CUTS = {"max_tokens_per_doc": 0, "max_tokens_per_query": 0, "truncate_prompt_tokens": -1}
IGNORED = ("user", "request_id")


async def rerank(request: DialectRequest) -> dict[str, Any]:
    """POST /v1/rerank: rank documents for a query, best first. Scores are sigmoids of the logits."""
    fields = request.fields(BODY)
    model = await reranker(request, fields, Task.TEXT_RANKING)
    check_shared(request, model, fields)
    documents = fields.get("documents")
    if not isinstance(documents, list):
        raise fields.refusal("documents", "Send a list of texts.")
    returned = [each if isinstance(each, dict) else {"text": each} for each in documents]
    texts = Fields(documents=[each.get("text") for each in returned])
    ranks = await best(request, model, fields, texts.texts("documents"))
    has_text = fields.flag("return_documents", True)
    results = [{**result(rank), **({"document": returned[rank.index]} if has_text else {})} for rank in ranks]
    return {"id": request.id, "model": model.name, "results": results}


async def reranker(request: DialectRequest, fields: Fields, *tasks: Task) -> ServedModel:
    """Return the model that the path or a field names, or the only model for `tasks`.

    It may also be a ColBERT, because a ColBERT ranks, too. Raises Refusal for a model of another task.
    """
    name = request.model_name or (None if fields.get("model") is None else fields.text("model"))
    if colbert := await ranking.only_colbert(request, name):
        return colbert
    return await request.chosen_model(fields, *tasks)


def check_shared(request: DialectRequest, model: ServedModel, fields: Fields) -> None:
    """Raise Refusal (400) for a shared field whose value requests something that hfx does not do."""
    fields.refuse_unsupported(NEUTRAL)
    if fields.get("truncation") is False:
        request.inference.uncut = "truncation"
    for name, whole in CUTS.items():
        if fields.get(name) not in (None, whole) or fields.get(name) is False:
            read = request.files.text_settings(model)["max_length"]
            if fields.number(name, read) < read:
                message = f"{name} is {fields[name]}; the model cuts all that it reads at a time after {read} tokens"
                raise invalid(f"{message}. Send {read} or more, or leave it out.", name)


async def best(request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str]) -> list[Rank]:
    """Return the ranks of the `top_n` best texts for the query in `fields`."""
    most = fields.number("top_n", len(texts))
    request.name_texts("documents")
    return (await ranking.ranked(request, model, fields.text("query"), texts))[:most]


def result(rank: Rank) -> dict[str, Any]:
    """Return a rank in the structure that all of these APIs share."""
    return {"index": rank.index, "relevance_score": rank.score}


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    return refusal.status, {"detail": refusal.message}


DOCUMENT = either(str, body("text", text=str))
QUERY: dict[str, Any] = {"model": str, "query": str, "documents": array(DOCUMENT), "top_n": int}
SHARED: dict[str, Any] = {
    **{name: type(values[0]) for name, values in NEUTRAL.items()},
    "rank_fields": list[str],
    **dict.fromkeys(CUTS, int),
    **dict.fromkeys(IGNORED, str),
}
BODY = body("query documents", **QUERY, return_documents=bool, **SHARED)
ROUTES = routes("POST", "v1/rerank", rerank, "Documents ranked for a query.", BODY)
DIALECT = Dialect("jina", ROUTES, error, "Jina", has_batches=True)
