"""What requests of text-embeddings-inference's API have in common: the model, the inputs, and the errors."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from hfx.errors import RequestRefused
from hfx.front.catalog import ServedModel
from hfx.front.dialect import DialectRequest
from hfx.front.fields import Fields, check_count, text
from hfx.front.refusals import Refusal, invalid, shown
from hfx.names import Kind, Task
from hfx.python_backends.errors import TOO_LONG
from hfx.tasks.kinds import VECTORS_OF_TOKENS

TASKS = (Task.FEATURE_EXTRACTION, Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING)
MOST_INPUTS = 512
WRONG_MODEL = "WRONG_MODEL"
EMPTY = "EMPTY"
# The statuses of refusals in this API by the front's statuses and reasons, and the kinds of errors.
STATUSES = {400: 422, 500: 424, 502: 424, 504: 424}
REASONS = {EMPTY: 400, TOO_LONG.name: 413, WRONG_MODEL: 424}
KINDS = {400: "Empty", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


async def model_for(request: DialectRequest, *tasks: Task) -> ServedModel:
    """Return the model of the path, or the only model for `tasks`. Raises Refusal for a model of another task."""
    request.name_texts("inputs")
    try:
        model = await request.model(*tasks)
    except RequestRefused as failure:
        if request.model_name:
            raise
        raise invalid(f"{failure.message} {failure.fix}", reason=WRONG_MODEL) from None
    if model.task not in tasks:
        message = f"The model {model.name!r} is for {model.task}, not for {' or '.join(tasks)}."
        raise invalid(message, reason=WRONG_MODEL)
    return model


async def sparse_model(request: DialectRequest) -> ServedModel:
    """Return the model of the path, or the only SPLADE model. Raises Refusal for a model of another kind."""
    return await _model_of_kind(request, "sparse vectors", {Kind.SPARSE})


async def token_model(request: DialectRequest) -> ServedModel:
    """Return the model of the path, or the only model that gives vectors of tokens. Raises Refusal for another kind."""
    return await _model_of_kind(request, "vectors of tokens", VECTORS_OF_TOKENS)


async def _model_of_kind(request: DialectRequest, results: str, kinds: Container[Kind | None]) -> ServedModel:
    models = [model for model in await request.models() if model.task is Task.FEATURE_EXTRACTION]
    if request.model_name or not models:
        models = [await model_for(request, Task.FEATURE_EXTRACTION)]
    suitable = [model for model in models if request.files.kind(model) in kinds]
    if len(suitable) != 1:
        names = ", ".join(model.name for model in suitable or models) or "none"
        message = f"Models that give {results} answer here, and the path names none; there are: {names}."
        raise invalid(message, reason=WRONG_MODEL)
    return suitable[0]


def inputs_of(fields: Fields) -> list[str]:
    """Return the texts in `inputs`, which are a text or a list of texts. Raises Refusal (400, 413)."""
    if isinstance(fields.get("inputs"), list):
        check_number(fields, "inputs")
    return fields.texts("inputs")


def single_texts(fields: Fields) -> list[str]:
    """Return the texts in `inputs`, which are a text or a list of lists of one text. Raises Refusal (400, 413)."""
    inputs = fields.get("inputs")
    if not isinstance(inputs, list):
        return [fields.text("inputs")]
    check_number(fields, "inputs")
    fix = "is not a list of one text. Send a text, or lists of one text each; pairs go to /rerank."
    return [_texts(row, 1, fix)[0] for row in inputs]


def pairs(fields: Fields) -> list[tuple[str, str]]:
    """Return the pairs in `inputs`, which are a list of two texts or a list of pairs. Raises Refusal (400, 413)."""
    inputs = fields.get("inputs")
    if isinstance(inputs, list):
        check_number(fields, "inputs")
    rows = inputs if isinstance(inputs, list) and isinstance(inputs[0], list) else [inputs]
    fix = "is not a pair. Send a list of two texts, or several."
    return [(first, second) for first, second in (_texts(row, 2, fix) for row in rows)]


def _texts(row: Any, count: int, fix: str) -> list[str]:
    if not isinstance(row, list) or len(row) != count:
        raise invalid(f"{shown(row)} {fix}", "inputs")
    return [text(item, "inputs") for item in row]


def check_number(fields: Fields, name: str) -> None:
    """Raise Refusal if a list is empty, or longer than MOST_INPUTS (413)."""
    check_count(len(fields[name]), name, MOST_INPUTS)
    if not fields[name]:
        raise invalid(f"{name} is empty. Send at least one text.", name, EMPTY)


def error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON of an error."""
    status = REASONS.get(refusal.reason, STATUSES.get(refusal.status, refusal.status))
    return status, {"error": refusal.message, "error_type": KINDS.get(status, "Validation")}
