"""Jina's API for rerankers, which vLLM and Cohere's first version have, too: POST /v1/rerank.

Source: the OpenAPI description of api.jina.ai, 2026.
"""

from __future__ import annotations

from typing import Any

from hfx.front.dialect import Dialect, DialectRequest, Route
from hfx.front.dialects.tei import ranked
from hfx.front.fields import check_task, flag, json_object, refuse_unknown, shown, text, texts, whole_number
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import BOOLEAN, TEXT, WHOLE, array, body, either
from hfx.metadata import INT32_MAX
from hfx.names import Task


async def rerank(request: DialectRequest) -> bytes:
    """POST /v1/rerank: the documents that answer a query, best first; scores are sigmoids of the logits."""
    fields = json_object(request.content)
    refuse_unknown(fields, BODY["properties"])
    catalog, name = request.inference.catalog, request.model or fields.get("model")
    model = await (catalog.only(Task.TEXT_RANKING) if name is None else catalog.model(text(name, "model")))
    check_task(model, Task.TEXT_RANKING)
    documents = fields.get("documents")
    if not isinstance(documents, list):
        raise Refusal(400, f"documents is {shown(documents)}. Send a list of texts.", param="documents")
    sources = texts([each.get("text") if isinstance(each, dict) else each for each in documents], "documents")
    most = whole_number(fields, "top_n", 1, INT32_MAX, len(sources))
    ranks = await ranked(request, model, text(fields.get("query"), "query"), sources)
    has_text = flag(fields, "return_documents", True)
    results = [
        {
            "index": rank.index,
            "relevance_score": rank.score,
            **({"document": {"text": sources[rank.index]}} if has_text else {}),
        }
        for rank in ranks[:most]
    ]
    return dumped({"id": request.id, "model": model.name, "results": results})


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and JSON of an error."""
    return refusal.status, {"detail": refusal.message}


DOCUMENT = either(TEXT, body("text", text=TEXT))
BODY = body("query documents", model=TEXT, query=TEXT, documents=array(DOCUMENT), top_n=WHOLE, return_documents=BOOLEAN)
DIALECT = Dialect(
    "jina",
    tuple(
        Route("POST", path, rerank, "Documents ranked for a query.", BODY)
        for path in ("/v1/rerank", "/models/{model}/v1/rerank")
    ),
    error,
)
