"""The API of Presidio's analyzer: POST /analyze, which remote recognizers and LiteLLM's guardrail call.

The path names the model, or the only model for token classification answers. Source: the OpenAPI description of
presidio-analyzer 2.2 and its example of a remote recognizer.
"""

from __future__ import annotations

from typing import Any

from hfx.client.results import Entity
from hfx.front import entities
from hfx.front.dialect import Dialect, DialectRequest, routes
from hfx.front.fields import Fields
from hfx.front.refusals import error_object
from hfx.front.schemas import body
from hfx.names import Task

# Fields of Presidio that hfx does not support, with the values that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("ad_hoc_recognizers", "allow_list", "context"), ([],)),
    "allow_list_match": ("exact",),
    "return_decision_process": (False,),
}


async def analyze(request: DialectRequest) -> list[Any]:
    """POST /analyze: return the entities of a text, or a list for each text of a list."""
    fields = request.fields(BODY)
    fields.refuse_unsupported(NEUTRAL)
    model = await request.chosen_model(fields, Task.TOKEN_CLASSIFICATION)
    request.name_texts("text")
    texts = fields.texts("text")
    rows = await entities.entities(request, model, fields, texts, "entities", "score_threshold")
    answers = [[_result(entity) for entity in row] for row in rows]
    return answers if isinstance(fields["text"], list) else answers[0]


def _result(entity: Entity) -> dict[str, Any]:
    place = {"start": entity.start, "end": entity.end, "score": entity.score}
    return {"entity_type": entity.entity, **place, "analysis_explanation": None}


async def supported(request: DialectRequest) -> list[str]:
    """GET /supportedentities: return the labels of entities."""
    model = await request.chosen_model(Fields(), Task.TOKEN_CLASSIFICATION)
    return entities.labels(request, model)


OPTIONS = {name: type(values[0]) for name, values in NEUTRAL.items()} | dict.fromkeys(
    ("language", "correlation_id"), str
)
BODY = body("text", text=str | list[str], entities=list[str], score_threshold=float, **OPTIONS)
ROUTES = (
    *routes("POST", "analyze", analyze, "Entities of texts.", BODY),
    *routes("GET", "supportedentities", supported, "The labels of entities.", {}),
)
DIALECT = Dialect("presidio", ROUTES, error_object, "Presidio", has_batches=True)
