"""Ranking of texts for a query, by a re-ranker or by the vectors of their tokens (ColBERT, which has roles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hfx.client import calls
from hfx.client.results import Rank, best_first
from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal
from hfx.names import PROMPT_NAME, Kind, Task
from hfx.python_backends.settings import QUERY
from hfx.python_backends.tasks.text_classification import sigmoid

if TYPE_CHECKING:
    from hfx.front.dialect import DialectRequest


async def only_colbert(request: DialectRequest, name: str | None = None, reason: str = "") -> ServedModel | None:
    """Return the model for a request if it is a ColBERT, or else None.

    The model for a request is the one that its path or `name` names, or the only model that ranks. Raises Refusal, with
    the dialect's `reason`, if no model is named and several rank.
    """
    catalog, name = request.inference.catalog, request.model_name or name
    models = [await catalog.model(name)] if name else await catalog.models()
    found = [model for model in models if model.task is Task.TEXT_RANKING or model.kind is Kind.LATE]
    if len(found) > 1:
        names = ", ".join(model.name for model in found)
        raise Refusal(
            400, f"The request's path names no model; these rank: {names}. Send it to /models/NAME.", reason=reason
        )
    return found[0] if found and found[0].kind is Kind.LATE else None


async def colbert_ranks(request: DialectRequest, model: ServedModel, pairs: Sequence[tuple[str, str]]) -> list[Rank]:
    """Return a ColBERT's rank for each pair of a query and a text."""
    queries, call = list(dict.fromkeys(query for query, _ in pairs)), calls.embed_tokens(model.name, QUERY)
    found = dict(zip(queries, await request.inference.rows(model, [call(query) for query in queries]), strict=True))
    ranks = {query: calls.rank_by_tokens(model.name, each.vector) for query, each in found.items()}
    sent = [ranks[query]((index, source)) for index, (query, source) in enumerate(pairs)]
    return await request.inference.rows(model, sent)


async def ranked(
    request: DialectRequest,
    model: ServedModel,
    query: str,
    sources: Sequence[str],
    *,
    raw_scores: bool = False,
    **prompt: Any,
) -> list[Rank]:
    """Return the ranks of the texts, best first.

    The scores are sigmoids of the logits, or the logits if `raw_scores` is true. A ColBERT's scores are its sums.
    """
    if model.kind is Kind.LATE:
        if prompt:
            raise Refusal(400, "The model's prompts are for queries and documents. Leave it out.", param=PROMPT_NAME)
        return best_first(await colbert_ranks(request, model, [(query, source) for source in sources]))
    call = calls.rank(model.name, query, raw_scores=True, **prompt)
    ranks = best_first(await request.inference.rows(model, [call(item) for item in enumerate(sources)]))
    if raw_scores:
        return ranks
    scores = sigmoid(np.array([rank.score for rank in ranks], np.float32)).tolist()
    return [replace(rank, score=score) for rank, score in zip(ranks, scores, strict=True)]
