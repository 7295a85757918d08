"""OpenAI's moderations: the labels of a text-classification model are the categories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hfx.front import labels
from hfx.front.dialect import DialectRequest
from hfx.front.dialects.openai_parameters import without_ignored
from hfx.front.fields import Fields, check_count, shown, text
from hfx.front.refusals import invalid
from hfx.front.schemas import array, body, either
from hfx.names import Task
from hfx.tasks.kinds import THRESHOLDS

DEFAULT_THRESHOLD = 0.5


async def moderations(request: DialectRequest) -> dict[str, Any]:
    """POST /v1/moderations: say which labels texts have. A label is flagged if its score is the threshold or more."""
    fields = without_ignored(request.fields())
    fields.refuse_unknown(BODY["properties"])
    model = await request.chosen_model(fields, Task.TEXT_CLASSIFICATION)
    recorded = {} if fields.get("threshold") is not None else json.loads(model.parameters.get(THRESHOLDS, "{}"))
    usual = fields.share("threshold", recorded.get("", DEFAULT_THRESHOLD))
    categories, texts = labels.flagged_labels(request, model), _texts(fields)
    rows = await labels.all_scores(request, model, fields, texts)
    thresholds = {category: recorded.get(category, usual) for category in categories}
    results = [_result(row, thresholds) for row in rows]
    return {"id": f"modr-{request.id}", "model": model.name, "results": results}


def _result(scores: Mapping[str, float], thresholds: Mapping[str, float]) -> dict[str, Any]:
    flags = {category: scores[category] >= threshold for category, threshold in thresholds.items()}
    return {
        "flagged": any(flags.values()),
        "categories": flags,
        "category_scores": {category: scores[category] for category in flags},
        "category_applied_input_types": {category: ["text"] for category in flags},
    }


def _texts(fields: Fields) -> list[str]:
    """Return the texts: a text, texts, or one text in parts, which lines divide. Raises Refusal (400, 413)."""
    parts = fields.get("input")
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], dict):
        return fields.texts("input")
    check_count(len(parts), "input")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise invalid(f"A part of the input is {shown(part)}. Send texts only.", "input")
    return ["\n".join(text(part.get("text"), "input") for part in parts)]


PART = body("type text", type={"enum": ["text"]}, text=str)
BODY = body("input", model=str, input=either(str, list[str], array(PART)), threshold=float, truncate=bool)
