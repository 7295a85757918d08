"""Functions that read the fields of a dialect's request and check their types. Refusals name the field."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hfx.client.settings import GenerationSettings
from hfx.errors import HfxError, UsageError
from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal, json_type, refused, refused_setting, renamed
from hfx.front.refusals import shown as shown
from hfx.front.schemas import Schema
from hfx.metadata import INT32_MAX, check_text
from hfx.names import DIMENSIONS, GENERATION_TASKS, LOGPROBS, PROMPT, PROMPT_NAME, RETURN_LOG_PROBS, Task
from hfx.python_backends.checks import Check, boolean, integer, nearest
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS, checked
from hfx.python_backends.errors import HAS_NO_PROMPTS, TOO_LONG, InvalidRequest, unusable
from hfx.python_backends.settings import DOCUMENT, QUERY
from hfx.python_backends.tasks import PROMPTS
from hfx.tasks.transformers_settings import INSTEAD

Fields = Mapping[str, Any]
# In one request. 16 MB of JSON can hold millions of texts, whose answers would fill the memory.
MOST_TEXTS = 2048
# Settings that are refused under these names: a dialect that can return log-probabilities has fields of its own for
# them.
LOG_PROBS = (RETURN_LOG_PROBS, LOGPROBS)
# The values that change nothing if an embedder has no prompts.
WITHOUT_PROMPTS = {PROMPT_NAME: (QUERY, DOCUMENT), PROMPT: ("",)}


def json_object(content: Any, param: str = "") -> dict[str, Any]:
    """Return `content`, which must be a JSON object: the body, or its field `param`. Raises Refusal (400)."""
    if content is None:
        raise Refusal(400, "The body is empty or null. Send a JSON object.")
    if not isinstance(content, dict):
        what = f"{param} is {shown(content)}" if param else f"The body is of type {json_type(content)}"
        raise Refusal(400, f"{what}. Send a JSON object.", param=param)
    return content


def known_fields(content: Any, body: Schema) -> dict[str, Any]:
    """Return the fields of the JSON object `content`. Raises Refusal (400) for a field that `body` does not have."""
    fields = json_object(content)
    refuse_unknown(fields, body["properties"])
    return fields


def text(value: Any, param: str) -> str:
    """Return `value`, which must be a text. Raises Refusal (400)."""
    if not isinstance(value, str):
        raise Refusal(400, f"{param} is {shown(value)}. Send a string.", param=param)
    try:
        return check_text(value, param)
    except UsageError as error:
        raise Refusal(400, f"{error.message} Send Unicode text.", param=param) from None


def texts(value: Any, param: str) -> list[str]:
    """Return the texts in `value`, which is a text or a list of 1 to MOST_TEXTS texts. Raises Refusal (400, 413)."""
    if isinstance(value, str):
        return [text(value, param)]
    if not isinstance(value, list) or not value:
        raise Refusal(400, f"{param} is {shown(value)}. Send a text, or a list of texts.", param=param)
    check_count(len(value), param)
    return [text(item, param) for item in value]


def check_count(count: int, param: str, most: int = MOST_TEXTS) -> None:
    """Raise Refusal (413) for more than `most` texts in `param`."""
    if count > most:
        raise Refusal(413, f"There are {count} texts in {param}. Send {most} at most.", param=param)


def whole_number(fields: Fields, name: str, low: int, high: int, default: int) -> int:
    """Return the whole number in the field `name`, from `low` to `high`. Raises Refusal (400)."""
    return int(_checked(fields, name, integer(low, high), default))


def embedding_options(model: ServedModel, fields: Fields) -> dict[str, Any]:
    """Return the prompt and dimensions of a request as keyword arguments of `calls.embed`.

    A model without prompts takes the names that sentence-transformers gives to empty prompts. Raises Refusal for other
    prompts of such a model, and if `dimensions` is less than 1. If a model has no shorter vectors, `dimensions` must be
    the length of its vectors, which `check_dimensions` checks.
    """
    count, prompt = whole_number(fields, DIMENSIONS, 1, INT32_MAX, 0), prompt_of(fields)
    if PROMPT_NAME not in model.metadata.input_types:
        others = [name for name, value in prompt.items() if value not in WITHOUT_PROMPTS[name]]
        if others:
            raise Refusal(400, f"{HAS_NO_PROMPTS % others[0]}. Leave it out.", param=others[0])
        prompt = {}
    return prompt | ({DIMENSIONS: count} if count and DIMENSIONS in model.metadata.input_types else {})


def check_dimensions(fields: Fields, width: int) -> None:
    """Raise Refusal if `dimensions` is not `width`, the length of the vectors in the answer."""
    if fields.get(DIMENSIONS) not in (None, width):
        message = f"dimensions is {shown(fields[DIMENSIONS])}; the model's vectors have {width}. Leave it out."
        raise Refusal(400, message, param=DIMENSIONS)


def prompt_of(fields: Fields) -> dict[str, Any]:
    """Return a request's prompt fields as keyword arguments of `calls.embed` and `calls.rank`."""
    return {name: text(fields[name], name) for name in PROMPTS if fields.get(name) is not None}


def flag(fields: Fields, name: str, default: bool = False) -> bool:
    """Return the boolean in the field `name`. Raises Refusal (400)."""
    return bool(_checked(fields, name, boolean, default))


def _checked(fields: Fields, name: str, check: Check, default: Any) -> Any:
    value = fields.get(name)
    try:
        return default if value is None else check(name, value)
    except InvalidRequest as error:
        raise Refusal(400, f"{name} is {shown(value)}. Send {error.allowed}.", param=name) from None


def generation_settings(fields: Fields, names: dict[str, str]) -> GenerationSettings:
    """Return the settings in `fields`. The model's defaults replace null and absent fields. Raises Refusal (400).

    `names` are the caller's names of fields by the settings' own. The names of the aliases in `fields` are added.
    """
    names |= {ALIASES[name]: name for name, value in fields.items() if name in ALIASES and value is not None}
    try:
        settings = checked(fields)
        for name in [name for name in settings if not SETTINGS[name].dtype]:
            if settings.pop(name) != SETTINGS[name].default:
                raise unusable(name, fields[name], "an answer has one text")
        unanswered = next((name for name in LOG_PROBS if settings.get(name, False) is not False), None)
        if unanswered is not None:
            raise unusable(unanswered, settings[unanswered], "answers have no place for it")
        for name, value in settings.items():
            for each in value if SETTINGS[name].is_list else (value,):
                if isinstance(each, str):
                    check_text(each, name)
        return GenerationSettings(**settings)
    except InvalidRequest as error:
        raise renamed(refused_setting(error), names) from None
    except HfxError as error:
        raise renamed(refused(error), names) from None


def refuse_unknown(fields: Fields, known: Collection[str]) -> None:
    """Raise Refusal (400) for a field that is not in `known`."""
    for name in fields:
        if name not in known:
            near = nearest(name, known)
            allowed = (
                f"Did you mean {near}?" if near else f"Send {', '.join(sorted(known))}." if known else "Leave it out."
            )
            raise Refusal(400, f"There is no field {shown(name)}. {allowed}", param=name)


def refuse_unsupported(fields: Fields, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise Refusal (400) for a field that hfx lacks, unless it has one of its `neutral` values (no effect)."""
    for name, values in neutral.items():
        value = fields.get(name)
        if value is not None and value not in values:
            allowed = f"Send {' or '.join(map(json.dumps, values))}, or leave it out" if values else "Leave it out"
            allowed += f", or use {INSTEAD[name]}" if name in INSTEAD else ""
            raise Refusal(400, f"{name} is {shown(value)}, which is not supported. {allowed}.", param=name)


def check_cut(fields: Fields, results: Sequence[Any], *, default: bool) -> None:
    """Raise Refusal (413) if the model did not read a text to its end, unless `truncate` allows it.

    `default` applies if `truncate` is absent. Models cut texts on the right; any other `truncation_direction` is
    refused (400).
    """
    direction = fields.get("truncation_direction")
    if direction is not None and str(direction).lower() != "right":
        message = f"truncation_direction is {shown(direction)}. Send right, or leave it out."
        raise Refusal(400, message, param="truncation_direction")
    most = max(result.truncated_tokens for result in results)
    if most and not flag(fields, "truncate", default):
        message = f"A text has {most} tokens more than the model reads. Send truncate, or less."
        raise Refusal(413, message, param="inputs", reason=TOO_LONG.name)


def check_task(model: ServedModel, *tasks: Task) -> None:
    """Raise Refusal (400) unless `model` is for one of `tasks`."""
    if model.task not in tasks:
        wanted = " or ".join(sorted(tasks))
        message = f"The model {model.name!r} is for {model.task}, not for {wanted}. Name a model of that task."
        raise Refusal(400, message, param="model")


def check_generator(model: ServedModel) -> None:
    """Raise Refusal (400) unless `model` generates texts."""
    check_task(model, *GENERATION_TASKS)
