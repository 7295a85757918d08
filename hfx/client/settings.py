"""Generation settings, given as an object or as keyword arguments: both as one object, and that as input tensors."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hfx.client.generation_settings import GenerationSettings, Settings
from hfx.errors import UsageError
from hfx.metadata import Value
from hfx.python_backends.engine.generation_settings import ALIASES, LISTS, to_text
from hfx.python_backends.parameters import nearest

__all__ = ["GenerationSettings", "Settings", "merged", "setting_values"]

FIELDS = tuple(field.name for field in fields(GenerationSettings))


def merged(settings: GenerationSettings | None, keywords: Settings) -> GenerationSettings:
    """`settings` with `keywords`, which win; raises UsageError for a keyword or value that can't be."""
    if settings is not None and not isinstance(settings, GenerationSettings):
        raise UsageError(
            f"The settings are of type {type(settings).__name__}.", "Give GenerationSettings(...), or keywords."
        )
    given = {} if settings is None else {name: getattr(settings, name) for name in FIELDS}
    chosen: dict[str, Any] = {}
    for alias, value in keywords.items():
        name = ALIASES.get(alias, alias)
        if name not in FIELDS:
            near = nearest(alias, FIELDS)
            hint = f"Did you mean {near}?" if near else f"Settings are {', '.join(FIELDS)}."
            raise UsageError(f"There is no setting {alias!r}.", hint)
        if value is None:
            continue
        if name != alias and name in LISTS and isinstance(value, str):  # OpenAI's `stop` may be one text
            value = [value]
        if chosen.setdefault(name, value) != value:
            raise UsageError(f"{alias} is {value!r}, but {name}, which is the same, {chosen[name]!r}.", "Give one.")
    return GenerationSettings(**given | chosen)


def setting_values(settings: GenerationSettings) -> dict[str, list[Value]]:
    """What is set, under the names of its tensors."""
    given = {name: getattr(settings, name) for name in FIELDS}
    return {name: _values(name, value) for name, value in given.items() if value is not None}


def _values(name: str, value: Any) -> list[Value]:
    return list(value) if name in LISTS else [to_text(name, value)]
