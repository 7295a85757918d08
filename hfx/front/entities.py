"""Entities of texts, for clients that name labels and a least score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfx.client import calls
from hfx.client.results import Entity
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.fields import Fields
from hfx.front.refusals import Refusal, invalid
from hfx.names import CANDIDATE_LABELS, TEXT_INPUT, THRESHOLD
from hfx.python_backends.errors import TOO_LONG
from hfx.python_backends.tasks.token_classification import IGNORED


def labels(request: DialectRequest, model: ServedModel) -> list[str]:
    """Return the labels that the entities of a token-classification model may have.

    Raises Refusal (400) for a model whose labels a request names.
    """
    if model.metadata.needs_labels:
        raise invalid(f"{model.name} has no labels of its own. Send those to find with a text.")
    settings = request.files.settings(model)
    kinds = [label if settings["aggregation"] == "none" else label.split("-", 1)[-1] for label in settings["labels"]]
    return [label for label in dict.fromkeys(kinds) if label != IGNORED]


def search(request: DialectRequest, fields: Fields, named: str, score: str) -> dict[str, Any]:
    """Return the arguments of `calls.label_tokens` for a model that needs labels, which the field `named` lists.

    The field `score` has the threshold. Raises Refusal (400), also if there are no labels.
    """
    request.names.update({CANDIDATE_LABELS: named, THRESHOLD: score})
    if not fields.get(named):
        raise fields.refusal(named, "Send the labels to find.")
    if fields.get(score) == 0:
        raise fields.refusal(score, "Send a number above 0.")
    return {
        "labels": fields.listed(named),
        "threshold": fields.share(score, 0) or None,
        "nested": fields.flag("nested", not fields.flag("flat_ner", True)),
        "multi_label": fields.flag("multi_label"),
    }


async def entities(
    request: DialectRequest, model: ServedModel, fields: Fields, texts: Sequence[str], named: str, score: str
) -> list[list[Entity]]:
    """Return the entities of each text. The field `named` may list labels, in any case, and `score` a least score.

    A model that needs labels looks for those in `named`. Raises Refusal (400) if another model has none of the labels,
    because its answer would say that no text has an entity, and 413 for a text that is too long.
    """
    settings = search(request, fields, named, score) if model.metadata.needs_labels else {}
    known, least = settings.get("labels") or labels(request, model), fields.share(score, 0)
    if not settings and fields.get(named) is not None:
        wanted = {label.casefold() for label in fields.listed(named)}
        chosen = [label for label in known if label.casefold() in wanted]
        if not chosen:
            raise fields.refusal(named, f"The labels of {model.name} are {', '.join(known)}.")
        known = chosen
    results = await request.rows(model, calls.label_tokens(model.name, **settings), texts)
    if any(result.truncated_tokens for result in results):
        message = f"A text is longer than {model.name} reads. Send it in parts."
        raise Refusal(413, message, param=request.names[TEXT_INPUT], reason=TOO_LONG.name)
    return [[each for each in result.entities if each.entity in known and each.score >= least] for result in results]
