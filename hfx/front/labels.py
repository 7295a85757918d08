"""The scores of all labels of texts, by a text-classification model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfx.client import calls
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.fields import Fields
from hfx.metadata import INT32_MAX


async def all_scores(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str]
) -> list[Mapping[str, float]]:
    """Return the score of each label for each text, best first. Raises Refusal (413) as `check_read` does."""
    request.name_texts("input")
    results = await request.rows(model, calls.classify(model.name, INT32_MAX), texts)
    fields.check_read(results, texts="input")
    return [{each.label: each.score for each in result.predictions} for result in results]
