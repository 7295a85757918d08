"""The API of Presidio's analyzer: POST /analyze, which remote recognizers and LiteLLM's guardrail call.

The path names the model, or the only model for token classification answers. Source: the OpenAPI description of
presidio-analyzer 2.2 and its example of a remote recognizer.
"""

from __future__ import annotations

from typing import Any

from hfx.front import entities
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.refusals import error_object
from hfx.front.schemas import body
from hfx.names import Task

# Fields of Presidio that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "return_decision_process": (False,),
    "ad_hoc_recognizers": ([],),
    "context": ([],),
    "allow_list": ([],),
    "allow_list_match": ("exact",),
}


async def analyze(request: DialectRequest) -> list[Any]:
    """POST /analyze: return the entities of a text, or a list for each text of a list."""
    fields = request.fields(BODY)
    fields.refuse_unsupported(NEUTRAL)
    model = await request.model(Task.TOKEN_CLASSIFICATION)
    model.check_task(Task.TOKEN_CLASSIFICATION)
    request.name_texts("text")
    texts = fields.texts("text")
    rows = await entities.entities(request, model, fields, texts, "entities", "score_threshold")
    answers = [
        [
            {"entity_type": each.entity, "start": each.start, "end": each.end, "score": each.score}
            | {"analysis_explanation": None}
            for each in row
        ]
        for row in rows
    ]
    return answers if isinstance(fields["text"], list) else answers[0]


async def supported(request: DialectRequest) -> list[str]:
    """GET /supportedentities: return the labels of entities."""
    model = await request.model(Task.TOKEN_CLASSIFICATION)
    model.check_task(Task.TOKEN_CLASSIFICATION)
    return entities.labels(request, model)


BODY = body(
    "text",
    text=str | list[str],
    language=str,
    entities=list[str],
    score_threshold=float,
    correlation_id=str,
    return_decision_process=bool,
    ad_hoc_recognizers=list,
    context=list[str],
    allow_list=list[str],
    allow_list_match=str,
)
ROUTES = (
    *routes("POST", "analyze", analyze, "Entities of texts.", BODY),
    *routes("GET", "supportedentities", supported, "The labels of entities.", {}),
)
DIALECT = Dialect("presidio", ROUTES, error_object, "Presidio", has_batches=True)
