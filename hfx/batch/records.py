"""Frozen dataclasses of JSON that was read from a file: each value is checked against the type of its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def record_of(kind: type[Record], values: Any) -> Record:
    """The dataclass `kind` of an object with exactly its fields. Raises ValueError."""
    hints = get_type_hints(kind)
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise ValueError(f"{kind.__name__} needs the members {', '.join(hints)}")
    return kind(**{name: _value(hint, values[name], name) for name, hint in hints.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint` has it. Raises ValueError for one of another type."""
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return record_of(hint, value)
    if get_origin(hint) is UnionType:
        return None if value is None else _value(get_args(hint)[0], value, name)
    if get_origin(hint) in (tuple, list, dict, Mapping):
        return _members(hint, value, name)
    if hint is Any or value in get_args(hint) or type(value) is hint:
        return value
    raise ValueError(f"{name!r} can't be {value!r:.40}")


def _members(hint: Any, value: Any, name: str) -> Any:
    """A tuple, list or mapping whose members have the types of `hint`."""
    origin, inner = get_origin(hint), get_args(hint)
    if type(value) is not (list if origin in (tuple, list) else dict):
        raise ValueError(f"{name!r} can't be {value!r:.40}")
    if isinstance(value, dict):
        return {key: _value(inner[1], each, name) for key, each in value.items()}
    return origin(_value(inner[0], each, name) for each in value)
