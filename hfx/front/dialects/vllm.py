"""vLLM's API for scores of pairs of texts: POST /score. Its other own paths are in vllm_pooling.py.

Source: vLLM's entrypoints (pooling/scoring), 2026.
"""

from __future__ import annotations

import time
from typing import Any

from hfx.front import ranking, vectors
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects import jina, openai, vllm_pooling
from hfx.front.fields import Fields
from hfx.front.refusals import invalid
from hfx.front.schemas import body
from hfx.names import QUERY, Task

# A request has the two sides of the pairs in the fields of one of these rows.
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
TEXT_FIELDS = tuple(dict.fromkeys(name for names in SIDES for name in names))


async def score(request: DialectRequest) -> dict[str, Any]:
    """POST /score: return a re-ranker's or ColBERT's score for each pair, or the cosine of an embedder's vectors.

    A re-ranker applies the checkpoint's activation, or none if `use_activation` is false.
    """
    fields = request.fields(BODY)
    model = await jina.reranker(request, fields, Task.TEXT_RANKING, Task.FEATURE_EXTRACTION)
    jina.check_shared(request, model, fields)
    first, second = _sides(fields)
    pairs = _pairs(fields, first, second)
    request.names[QUERY] = first
    request.name_texts(second)
    raw = not fields.flag("use_activation", True)
    if model.task is Task.TEXT_RANKING or model.is_colbert:
        scores = [rank.score for rank in await ranking.pair_ranks(request, model, pairs, raw or None)]
    elif raw:
        raise invalid("use_activation is false: cosines have no activation. Leave it out.", "use_activation")
    else:
        scores = await vectors.pair_cosines(request, model, pairs)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    head = {"id": f"score-{request.id}", "object": "list", "created": int(time.time()), "model": model.name}
    return {**head, "data": data}


def _sides(fields: Fields) -> tuple[str, str]:
    """Return the names of the fields with the texts of the two sides. Raises Refusal (400)."""
    sent = tuple(name for name in TEXT_FIELDS if fields.get(name) is not None)
    for sides in SIDES:
        if sides == sent:
            return sides
    raise invalid(f"The texts are in {' and '.join(sent) or 'no field'}. Send text_1 and text_2.", "text_1")


def _pairs(fields: Fields, first: str, second: str) -> list[tuple[str, str]]:
    """Return the pairs: one text with each text of the other side, or equal numbers of texts on both sides.

    Raises Refusal (400, 413).
    """
    texts, others = fields.texts(first), fields.texts(second)
    if len(texts) not in (1, len(others)):
        message = f"There are {len(texts)} texts in {first} and {len(others)} in {second}."
        raise invalid(f"{message} Send one of the first, or as many of both.", first)
    return [*zip(texts * len(others) if len(texts) == 1 else texts, others, strict=True)]


BODY = body("", model=str, **dict.fromkeys(TEXT_FIELDS, str | list[str]), use_activation=bool, **jina.SHARED)
ROUTES = (
    *routes("POST", "score", score, "Scores of pairs of texts.", BODY),
    *routes("POST", "v1/score", score, "Scores of pairs of texts.", BODY),
    *vllm_pooling.ROUTES,
)
DIALECT = Dialect("vllm", ROUTES, openai.error, "vLLM", has_batches=True)
