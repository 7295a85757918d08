"""vLLM's API for scores of pairs of texts: POST /score. vLLM's other paths belong to OpenAI's and Jina's APIs.

Source: vLLM's entrypoints (pooling/scoring), 2026.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hfx.client import calls
from hfx.front.answers import cosine_pairs
from hfx.front.catalog import ServedModel
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.dialects.jina import SHARED, check_shared, reranker
from hfx.front.dialects.openai import error
from hfx.front.fields import Fields, flag, known_fields, texts
from hfx.front.ranking import colbert_ranks
from hfx.front.refusals import Refusal, dumped
from hfx.front.schemas import body
from hfx.names import QUERY, TEXT_INPUT, Kind, Task

# A request has the two sides of the pairs in the fields of one of these rows.
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
TEXT_FIELDS = tuple(dict.fromkeys(name for names in SIDES for name in names))
Pairs = Sequence[tuple[str, str]]


async def score(request: DialectRequest) -> bytes:
    """POST /score: return a re-ranker's or ColBERT's score for each pair, or the cosine of an embedder's vectors."""
    fields = known_fields(request.content, BODY)
    model = await reranker(request, fields, Task.TEXT_RANKING, Task.FEATURE_EXTRACTION)
    check_shared(request, model, fields)
    pairs = _pairs(fields)
    request.inference.names |= dict(zip((QUERY, TEXT_INPUT), _sides(fields), strict=True))
    raw = not flag(fields, "use_activation", True)
    if model.task is Task.TEXT_RANKING:
        scores = await _ranked(request, model, pairs, raw)
    elif model.kind is Kind.LATE:
        scores = [rank.score for rank in await colbert_ranks(request, model, pairs)]
    elif raw:
        raise Refusal(400, "use_activation is false: cosines have no activation. Leave it out.", param="use_activation")
    else:
        scores = await _similar(request, model, pairs)
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)]
    head = {"id": f"score-{request.id}", "object": "list", "created": int(time.time()), "model": model.name}
    return dumped({**head, "data": data})


async def _ranked(request: DialectRequest, model: ServedModel, pairs: Pairs, raw: bool) -> list[float]:
    """Return the scores with the checkpoint's own activation, or the logits if `raw` is true."""
    sent = [calls.rank(model.name, query, raw or None)((index, each)) for index, (query, each) in enumerate(pairs)]
    return [rank.score for rank in await request.inference.rows(model, sent)]


async def _similar(request: DialectRequest, model: ServedModel, pairs: Pairs) -> list[float]:
    different = list(dict.fromkeys(text for pair in pairs for text in pair))
    call = calls.embed(model.name)
    results = await request.inference.rows(model, [call(text) for text in different])
    vectors = {text: result.vector for text, result in zip(different, results, strict=True)}
    return cosine_pairs(*(np.stack([vectors[text] for text in side]) for side in zip(*pairs, strict=True)))


def _pairs(fields: Fields) -> Pairs:
    """Return the pairs: one text with each text of the other side, or equal numbers of texts on both sides.

    Raises Refusal (400, 413).
    """
    sent = _sides(fields)
    first, second = (texts(fields[name], name) for name in sent)
    if len(first) not in (1, len(second)):
        message = f"There are {len(first)} texts in {sent[0]} and {len(second)} in {sent[1]}."
        raise Refusal(400, f"{message} Send one of the first, or as many of both.", param=sent[0])
    return [*zip(first * len(second) if len(first) == 1 else first, second, strict=True)]


def _sides(fields: Fields) -> tuple[str, ...]:
    """Return the names of the fields with texts. Raises Refusal (400)."""
    sent = tuple(name for name in TEXT_FIELDS if fields.get(name) is not None)
    if sent not in SIDES:
        message = f"The texts are in {' and '.join(sent) or 'no field'}. Send text_1 and text_2."
        raise Refusal(400, message, param="text_1")
    return sent


BODY = body(
    "",
    model=str,
    **dict.fromkeys(TEXT_FIELDS, str | list[str]),
    use_activation=bool,
    **SHARED,
)
DIALECT = Dialect(
    "vllm",
    (
        *routes("POST", "score", score, "Scores of pairs of texts.", BODY),
        *routes("POST", "v1/score", score, "Scores of pairs of texts.", BODY),
    ),
    error,
)
