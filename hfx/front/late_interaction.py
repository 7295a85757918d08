"""Texts ranked by the vectors of their tokens (ColBERT, which reads queries and documents differently)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hfx.client import calls
from hfx.client.results import Rank, decode_token_embeddings
from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal
from hfx.names import TOKENIZE_SUFFIX, Task
from hfx.python_backends.settings import DOCUMENT, QUERY

if TYPE_CHECKING:
    from hfx.front.dialect import DialectRequest


def is_colbert(request: DialectRequest, model: ServedModel) -> bool:
    """Whether texts are ranked by the vectors of their tokens (ColBERT)."""
    embeds = model.task is Task.FEATURE_EXTRACTION
    return embeds and bool(request.files.settings(model, TOKENIZE_SUFFIX).get("roles"))


async def only_colbert(request: DialectRequest, name: str | None = None, reason: str = "") -> ServedModel | None:
    """The ColBERT of the path or of this `name`, or the only model that ranks, where it is one; else None.

    Raises Refusal, for a `reason` of the dialect, where several rank and none is named.
    """
    catalog, name = request.inference.catalog, request.model or name
    models = [await catalog.model(name)] if name else await catalog.models()
    found = [model for model in models if model.task is Task.TEXT_RANKING or is_colbert(request, model)]
    if len(found) > 1:
        names = ", ".join(model.name for model in found)
        raise Refusal(
            400, f"The request's path names no model; these rank: {names}. Send it to /models/NAME.", reason=reason
        )
    return found[0] if found and is_colbert(request, found[0]) else None


async def colbert_ranks(request: DialectRequest, model: ServedModel, pairs: Sequence[tuple[str, str]]) -> list[Rank]:
    """A rank for each pair of a query and a text, by a ColBERT."""
    queries, call = list(dict.fromkeys(query for query, _ in pairs)), calls.embed_tokens(model.name, QUERY)
    found = dict(zip(queries, await request.inference.rows(model, [call(query) for query in queries]), strict=True))
    call = calls.embed_tokens(model.name, DOCUMENT)
    sent = [
        calls.Call(model.name, call(source).values, partial(_max_sim, index, found[query].vector))
        for index, (query, source) in enumerate(pairs)
    ]
    return await request.inference.rows(model, sent)


def _max_sim(index: int, query: Any, outputs: Mapping[str, Any]) -> Rank:
    """The sum of each of the query's vectors' largest product with one of the text (MaxSim), as PyLate's scores."""
    document = decode_token_embeddings(outputs)
    return Rank(index, float((query @ document.vector.T).max(axis=1, initial=-1).sum()), document.truncated_tokens)
