"""Checks of values that come from outside: of requests, and of the JSON files of a model.

A check takes a field's name and value, and returns the value as it is used; it raises InvalidRequest, which names the
field and says what is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidRequest, ModelDamaged

Check = Callable[[str, Any], Any]
Ids = tuple[int, ...]
Read = TypeVar("Read")


def integer(low: int, high: int | None = None) -> Check:
    """From `low` to `high`, both included."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise InvalidRequest(name, value, allowed)
        return value

    return check


def number(low: float, high: float) -> Check:
    """An integer or float from `low` to `high`, as a float."""

    def check(name: str, value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def one_of(*allowed: Any) -> Check:
    """One of `allowed`, which are integers or strings."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, type(allowed[0])) or isinstance(value, bool) or value not in allowed:
            raise InvalidRequest(name, value, " or ".join(map(str, allowed)))
        return value

    return check


def instance(kind: type, allowed: str) -> Check:
    """An instance of `kind`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidRequest(name, value, allowed)
        return value

    return check


boolean = instance(bool, "true or false")
string = instance(str, "a text")
mapping = instance(dict, "an object")


def filled(name: str, value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(name, value, "a text")
    return value


def strings(most: int, longest: int) -> Check:
    """At most `most` different strings of 1 to `longest` characters."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise InvalidRequest(name, value, f"a list of at most {most} texts")
        for each in value:
            if not isinstance(each, str) or not 0 < len(each) <= longest:
                raise InvalidRequest(name, each, f"texts of 1 to {longest} characters")
        return tuple(dict.fromkeys(value))

    return check


def optional(check: Check) -> Check:
    """None, or what `check` takes."""
    return lambda name, value: None if value is None else check(name, value)


token_id = integer(0)


def token_ids(name: str, value: Any) -> Ids:
    """A list, tuple or array of token ids."""
    ids = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(ids, (list, tuple)) or any(type(each) is not int or each < 0 for each in ids):
        raise InvalidRequest(name, value, "token ids: whole numbers of at least 0")
    return tuple(ids)


def token_sequences(name: str, value: Any) -> tuple[Ids, ...]:
    """Lists of token ids, none of them empty."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, (list, tuple)) and each for each in value):
        raise InvalidRequest(name, value, "lists of token ids, none of them empty")
    return tuple(token_ids(name, each) for each in value)


@dataclass(frozen=True)
class Fields:
    """The values of a JSON object by key; in what is raised, names are `prefix` and the key."""

    values: Mapping[str, Any]
    prefix: str = ""

    def take(self, key: str, check: Check) -> Any:
        """The checked value of `key`, None where it is missing."""
        return check(self.prefix + key, self.values.get(key))

    def inside(self, key: str) -> Fields:
        """The fields of the object at `key`."""
        return Fields(self.take(key, mapping), f"{self.prefix}{key}.")


def read_json(path: Path, version: int, parse: Callable[[dict[str, Any]], Read]) -> Read:
    """What `parse` makes of the object in a JSON file whose field `format` is `version`.

    Raises ModelDamaged, naming the file, and the field that is not as it should be.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        mapping("its content", content)
        if content.get("format") != version:
            raise InvalidRequest("format", content.get("format"), f"{version}; another version of hfx has written it")
        return parse(content)
    except (OSError, ValueError) as error:
        raise ModelDamaged(f"{path} can't be read: {error}") from None
    except InvalidRequest as refusal:
        raise ModelDamaged(f"{path}: {refusal.message}") from None
