"""The types of generation settings, by the table that the engine has too. Their ranges are checked by the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx.errors import UsageError
from hfx.python_backends.engine.errors import InvalidRequest
from hfx.python_backends.engine.generation_settings import SETTINGS

TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "INT32": ((int,), "a whole number"),
    "UINT64": ((int,), "a whole number"),
    "FP32": ((int, float), "a number"),
    "BOOL": ((bool,), "True or False"),
}


def checked_types(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` that are set, lists as tuples. Raises UsageError naming the first of the wrong type."""
    return {name: _checked(name, value) for name, value in settings.items() if value is not None}


def _checked(name: str, value: Any) -> Any:
    if SETTINGS[name].is_list:
        if isinstance(value, str):
            raise UsageError(f"{name} is one text, {value!r}.", f"Give a list: [{value!r}].")
        value = tuple(value)
    if allowed := _allowed(name, value):
        raise UsageError(f"{name} is {value!r}.", f"Give {allowed}.")
    return value


def _allowed(name: str, value: Any) -> str:
    """What the setting takes; empty if it takes `value`."""
    setting = SETTINGS[name]
    if setting.dtype in TYPES:
        types, allowed = TYPES[setting.dtype]
        return "" if type(value) in types else allowed
    try:
        setting.check(name, value)
    except InvalidRequest as refusal:
        return refusal.allowed
    return ""
