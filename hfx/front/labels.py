"""The scores of all labels of texts, by a text-classification model, and the labels of safe texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hfx.client import calls
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.fields import Fields
from hfx.front.refusals import invalid
from hfx.metadata import INT32_MAX
from hfx.tasks.kinds import SAFE_LABELS

# Labels of texts that are not flagged, in lower case, if the export does not name any.
USUAL_SAFE = (
    *("acceptable", "benign", "clean", "ham", "harmless", "legitimate", "neutral", "non-toxic", "non_toxic"),
    *("none", "normal", "not_toxic", "ok", "safe", "unharmful"),
)


async def all_scores(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str]
) -> list[Mapping[str, float]]:
    """Return the score of each label for each text, in the model's order. Raises Refusal as `check_read` does."""
    request.name_texts("input")
    results = await request.rows(model, calls.classify(model.name, INT32_MAX), texts)
    fields.check_read(results, texts="input")
    rows = [{each.label: each.score for each in result.predictions} for result in results]
    return [{label: row[label] for label in request.files.settings(model)["labels"]} for row in rows]


def flagged_labels(request: DialectRequest, model: ServedModel) -> list[str]:
    """Return the labels of texts to flag: all but those that the export or USUAL_SAFE calls safe.

    Raises Refusal (400) if the labels exclude each other and none is safe, and if the scores are no probabilities.
    """
    settings = request.files.settings(model)
    names, recorded = settings["labels"], model.parameters.get(SAFE_LABELS)
    safe = json.loads(recorded) if recorded else [name for name in names if name.lower() in USUAL_SAFE]
    flagged = [name for name in names if name not in safe]
    if settings["activation"] == "none":
        raise invalid(f"The scores of {model.name} are no probabilities. Name another model.", "model")
    if not flagged or (settings["activation"] == "softmax" and flagged == names):
        message = f"The labels of {model.name} are {', '.join(names)}; which of them are safe is not known."
        raise invalid(f"{message} Export it with --safe-label.", "model")
    return flagged
