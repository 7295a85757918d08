"""The settings in a configuration that can be changed without making the model anew, by name.

Owns how each is found in Triton's message and written there. It must not know files, models or good values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hfx.errors import RepositoryError

PARAMETER = "parameters."
Value = int | str


@dataclass(frozen=True, slots=True)
class Field:
    """How a field is read (None: this configuration hasn't got it) and written."""

    read: Callable[[Any], Value | None]
    write: Callable[[Any, Value], None]


def _instances(message: Any) -> int | None:
    return message.instance_group[0].count if len(message.instance_group) == 1 else None


def _set_instances(message: Any, value: Value) -> None:
    message.instance_group[0].count = value


def _delay(message: Any) -> int | None:
    batching = message.dynamic_batching
    return int(batching.max_queue_delay_microseconds) if message.HasField("dynamic_batching") else None


def _set_delay(message: Any, value: Value) -> None:
    message.dynamic_batching.max_queue_delay_microseconds = value


def _plain(name: str) -> Field:
    return Field(lambda message: getattr(message, name), lambda message, value: setattr(message, name, value))


FIELDS: Mapping[str, Field] = {
    "instances": Field(_instances, _set_instances),
    "max_batch_size": _plain("max_batch_size"),
    "max_queue_delay_microseconds": Field(_delay, _set_delay),
    "default_model_filename": _plain("default_model_filename"),
}


def lookup(name: str) -> Field:
    """The field NAME, or `parameters.KEY`. Raises RepositoryError for another name."""
    if name.startswith(PARAMETER):
        return _parameter(name.removeprefix(PARAMETER))
    if name not in FIELDS:
        raise RepositoryError(f"{name!r} can't be changed.", f"Choose of {', '.join(FIELDS)}, {PARAMETER}KEY.")
    return FIELDS[name]


def _parameter(key: str) -> Field:
    def read(message: Any) -> Value | None:
        text = message.parameters[key].string_value if key in message.parameters else None
        return int(text) if text is not None and text.isascii() and text.isdecimal() else text

    def write(message: Any, value: Value) -> None:
        message.parameters[key].string_value = str(value)

    return Field(read, write)
