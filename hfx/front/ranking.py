"""Ranking of texts for a query, by a re-ranker or by the vectors of their tokens (ColBERT, which has roles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hfx.client import calls
from hfx.client.results import Rank, best_first
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.refusals import invalid
from hfx.names import PROMPT_NAME, Task
from hfx.python_backends.settings import QUERY
from hfx.python_backends.tasks.text_classification import sigmoid


async def only_colbert(request: DialectRequest, name: str | None = None, reason: str = "") -> ServedModel | None:
    """Return the model for a request if it is a ColBERT, or else None.

    The model for a request is the one that its path or `name` names, or the only model that ranks. Raises Refusal, with
    the dialect's `reason`, if no model is named and several rank.
    """
    name = request.model_name or name
    models = [await request.inference.catalog.model(name)] if name else await request.models()
    rankers = [model for model in models if model.task is Task.TEXT_RANKING or model.is_colbert]
    if len(rankers) > 1:
        names = ", ".join(model.name for model in rankers)
        message = f"The request's path names no model; these rank: {names}. Send it to /models/NAME."
        raise invalid(message, reason=reason)
    return rankers[0] if rankers and rankers[0].is_colbert else None


async def pair_ranks(
    request: DialectRequest, model: ServedModel, pairs: Sequence[tuple[str, str]], raw_scores: bool | None = None
) -> list[Rank]:
    """Return the rank of each pair of a query and a text, in the order of the pairs.

    A re-ranker applies the checkpoint's activation, unless `raw_scores` is true. A ColBERT has no activation.
    """
    queries = list(dict.fromkeys(query for query, _ in pairs))
    if model.is_colbert:
        results = await request.rows(model, calls.embed_tokens(model.name, QUERY), queries)
        ranks = [calls.rank_by_tokens(model.name, result.vector) for result in results]
    else:
        ranks = [calls.rank(model.name, query, raw_scores) for query in queries]
    call = dict(zip(queries, ranks, strict=True))
    return await request.rows(model, lambda item: call[item[1][0]]((item[0], item[1][1])), enumerate(pairs))


async def ranked(
    request: DialectRequest,
    model: ServedModel,
    query: str,
    texts: Sequence[str],
    *,
    raw_scores: bool = False,
    **prompt: str,
) -> list[Rank]:
    """Return the ranks of the texts, best first.

    The scores are sigmoids of the logits, or the logits if `raw_scores` is true. A ColBERT's scores are its sums.
    """
    if model.is_colbert:
        if prompt:
            raise invalid("The model's prompts are for queries and documents. Leave it out.", PROMPT_NAME)
        return best_first(await pair_ranks(request, model, [(query, text) for text in texts]))
    call = calls.rank(model.name, query, raw_scores=True, **prompt)
    ranks = best_first(await request.rows(model, call, enumerate(texts)))
    if raw_scores:
        return ranks
    scores = sigmoid(np.array([rank.score for rank in ranks], np.float32)).tolist()
    return [replace(rank, score=score) for rank, score in zip(ranks, scores, strict=True)]


def listed(ranks: Sequence[Rank], texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return `ranks`, best first, as JSON, each with its text unless `texts` is None."""
    rows = [{"index": rank.index, "score": rank.score} for rank in best_first(ranks)]
    return rows if texts is None else [{**row, "text": texts[int(row["index"])]} for row in rows]


async def pair_labels(
    request: DialectRequest,
    model: ServedModel,
    pairs: Sequence[tuple[str, str]],
    *,
    raw: bool,
    softmax: bool,
    **prompt: str,
) -> list[list[dict[str, Any]]]:
    """Return the labels of each pair with their scores, best first."""
    names = request.files.settings(model)["labels"]
    rows = await request.rows(model, calls.predict(model.name, raw or None, softmax or None, **prompt), pairs)
    return [
        [{"label": names[at], "score": float(row[at])} for at in np.argsort(-row, kind="stable").tolist()]
        for row in rows
    ]
