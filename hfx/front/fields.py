"""Functions that read the fields of a dialect's request and check their types. Refusals name the field."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from hfx.client.settings import GenerationSettings
from hfx.errors import HfxError, UsageError
from hfx.front.refusals import Refusal, invalid, json_type, refused, refused_setting, renamed
from hfx.front.refusals import shown as shown
from hfx.metadata import INT32_MAX, check_text
from hfx.names import LOG_PROBS, PROMPT, PROMPT_NAME
from hfx.python_backends.checks import Check, boolean, integer, nearest, number
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS, checked
from hfx.python_backends.errors import TOO_LONG, InvalidRequest, unusable
from hfx.python_backends.settings import DOCUMENT, QUERY
from hfx.python_backends.tasks import PROMPTS
from hfx.tasks.transformers_settings import INSTEAD

# In one request. 16 MB of JSON can hold millions of texts, whose answers would fill the memory.
MOST_TEXTS = 2048
# The values that change nothing if an embedder has no prompts.
WITHOUT_PROMPTS = {PROMPT_NAME: (QUERY, DOCUMENT), PROMPT: ("",)}


class Fields(dict[str, Any]):
    """The fields of a JSON object in a request.

    The methods return a field with its type, and raise Refusal (400), which names the field, for any other type. A
    field that is null is absent.
    """

    @classmethod
    def of(cls, content: Any) -> Self:
        """Return the fields of `content`, which must be a JSON object."""
        return cls(json_object(content))

    def text(self, name: str) -> str:
        """Return the text in the field `name`. Raises Refusal (400) for other values."""
        return text(self.get(name), name)

    def texts(self, name: str) -> list[str]:
        """Return the texts of a field that is a text or a list of texts. Raises Refusal (413) for too many."""
        value = self.get(name)
        if isinstance(value, list) and value:
            check_count(len(value), name)
            return [text(item, name) for item in value]
        if not isinstance(value, str):
            raise self.refusal(name, "Send a text, or a list of texts.")
        return [self.text(name)]

    def listed(self, name: str) -> list[str]:
        """Return the texts of a field that is a list of texts. Raises Refusal (413) for too many."""
        if not isinstance(self.get(name), list):
            raise self.refusal(name, "Send a list of texts.")
        return self.texts(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the boolean in the field `name`. Raises Refusal (400) for other values."""
        return bool(self._checked(name, boolean, default))

    def number(self, name: str, default: int, low: int = 1, high: int = INT32_MAX) -> int:
        """Return a whole number from `low` to `high`."""
        return int(self._checked(name, integer(low, high), default))

    def share(self, name: str, default: float) -> float:
        """Return a number from 0 to 1."""
        return float(self._checked(name, number(0, 1), default))

    def _checked(self, name: str, check: Check, default: Any) -> Any:
        value = self.get(name)
        try:
            return default if value is None else check(name, value)
        except InvalidRequest as error:
            raise self.refusal(name, f"Send {error.allowed}.") from None

    def object(self, name: str) -> Fields:
        """Return the fields of an object, which are none if the field is absent."""
        return Fields(json_object(self.get(name) or {}, name))

    def prompt(self) -> dict[str, str]:
        """Return the prompt of a request, as keyword arguments of functions in `hfx.client.calls`."""
        return {name: self.text(name) for name in PROMPTS if self.get(name) is not None}

    def refusal(self, name: str, fix: str) -> Refusal:
        """Return the refusal (400) of a field's value. `fix` is a sentence that says what to send."""
        return invalid(f"{name} is {shown(self.get(name))}. {fix}", name)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise Refusal (400) for a field that is not in `known`."""
        refuse_unknown(self, known)

    def refuse_unsupported(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise Refusal (400) for a field that hfx lacks, unless it has one of its `neutral` values (no effect)."""
        for name, values in neutral.items():
            if self.get(name) is not None and self[name] not in values:
                allowed = f"Send {' or '.join(map(json.dumps, values))}, or leave it out" if values else "Leave it out"
                allowed += f", or use {INSTEAD[name]}" if name in INSTEAD else ""
                raise invalid(f"{name} is {shown(self[name])}, which is not supported. {allowed}.", name)

    def check_read(self, results: Sequence[Any], *, truncate: bool = False, texts: str = "inputs") -> None:
        """Raise Refusal (413) if the model did not read a text to its end, unless the field `truncate` allows it.

        The parameter `truncate` is the default of the field, and `texts` names the field that has the texts. Models cut
        texts on the right; any other `truncation_direction` is refused (400).
        """
        name = "truncation_direction"
        if self.get(name) is not None and str(self[name]).lower() != "right":
            raise self.refusal(name, "Send right, or leave it out.")
        most = max(result.truncated_tokens for result in results)
        if most and not self.flag("truncate", truncate):
            message = f"A text has {most} tokens more than the model reads. Send truncate, or less."
            raise Refusal(413, message, param=texts, reason=TOO_LONG.name)


def json_object(content: Any, param: str = "") -> dict[str, Any]:
    """Return `content`, which must be a JSON object: the body, or its field `param`. Raises Refusal (400)."""
    if content is None:
        raise invalid("The body is empty or null. Send a JSON object.")
    if not isinstance(content, dict):
        what = f"{param} is {shown(content)}" if param else f"The body is of type {json_type(content)}"
        raise invalid(f"{what}. Send a JSON object.", param)
    return content


def text(value: Any, param: str) -> str:
    """Return `value`, which must be a text. Raises Refusal (400)."""
    if not isinstance(value, str):
        raise invalid(f"{param} is {shown(value)}. Send a string.", param)
    try:
        return check_text(value, param)
    except UsageError as error:
        raise invalid(f"{error.message} Send Unicode text.", param) from None


def check_count(count: int, param: str, most: int = MOST_TEXTS, items: str = "texts") -> None:
    """Raise Refusal (413) for more than `most` texts, or other `items`, in `param`."""
    if count > most:
        raise Refusal(413, f"There are {count} {items} in {param}. Send {most} at most.", param=param)


def generation_settings(fields: Mapping[str, Any], names: dict[str, str]) -> GenerationSettings:
    """Return the settings in `fields`. The model's defaults replace null and absent fields. Raises Refusal (400).

    `names` are the caller's names of fields by the settings' own. The names of the aliases in `fields` are added.
    """
    names |= {ALIASES[name]: name for name, value in fields.items() if name in ALIASES and value is not None}
    try:
        settings = checked(fields)
        for name in [name for name in settings if not SETTINGS[name].dtype]:
            if settings.pop(name) != SETTINGS[name].default:
                raise unusable(name, fields[name], "an answer has one text")
        # A dialect that can return log-probabilities has fields of its own for them.
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


def refuse_unknown(fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise Refusal (400) for a field that is not in `known`."""
    for name in fields:
        if name not in known:
            near, names = nearest(name, known), ", ".join(sorted(known))
            allowed = f"Did you mean {near}?" if near else f"Send {names}." if known else "Leave it out."
            raise invalid(f"There is no field {shown(name)}. {allowed}", name)
