"""Checks of values that come from outside: of requests, of Triton's request parameters, and of a model's JSON files.

A check takes the name and the value of a field, and returns the value as hfx uses it. It raises InvalidRequest, which
names the field and says which values are allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from .errors import HAS_ANOTHER_TYPE, InvalidRequest, ModelDamaged
from .tasks import TASKS

Check = Callable[[str, Any], Any]
Ids = tuple[int, ...]
Read = TypeVar("Read")


def integer(low: int, high: int | None = None) -> Check:
    """Return a check for an integer from `low` to `high`, both included."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise InvalidRequest(name, value, allowed)
        return value

    return check


def number(low: float, high: float) -> Check:
    """Return a check for an integer or float from `low` to `high`; the check returns a float."""

    def check(name: str, value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def one_of(*allowed: Any) -> Check:
    """Return a check for one of `allowed`, which are integers or strings."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, type(allowed[0])) or isinstance(value, bool) or value not in allowed:
            raise InvalidRequest(name, value, " or ".join(map(str, allowed)))
        return value

    return check


def instance(kind: type, allowed: str) -> Check:
    """Return a check for an instance of `kind`, which errors call `allowed`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidRequest(name, value, allowed)
        return value

    return check


boolean = instance(bool, "true or false")
string = instance(str, "a text")
mapping = instance(dict, "an object")


def filled(name: str, value: Any) -> str:
    """Check a string that must not be empty."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(name, value, "a text")
    return value


def strings(most: int, longest: int) -> Check:
    """Return a check for a list of at most `most` strings of 1 to `longest` characters; it drops duplicates."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise InvalidRequest(name, value, f"a list of at most {most} texts")
        for each in value:
            if not isinstance(each, str) or not 0 < len(each) <= longest:
                raise InvalidRequest(name, each, f"texts of 1 to {longest} characters")
        return tuple(dict.fromkeys(value))

    return check


def optional(check: Check) -> Check:
    """Return a check that allows None and every value that `check` allows."""
    return lambda name, value: None if value is None else check(name, value)


token_id = integer(0)


def token_ids(name: str, value: Any) -> Ids:
    """Check a list, tuple or array of token ids."""
    ids = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(ids, (list, tuple)) or any(type(each) is not int or each < 0 for each in ids):
        raise InvalidRequest(name, value, "token ids, which are whole numbers of at least 0")
    return tuple(ids)


def at_most(most: int, check: Check) -> Check:
    """Return a `check` of a list that refuses one of more than `most` items before it reads them."""

    def check_few(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and len(value) > most:
            raise InvalidRequest(name, len(value), f"a list of at most {most}")
        return check(name, value)

    return check_few


def token_sequences(name: str, value: Any) -> tuple[Ids, ...]:
    """Check lists of token ids, none of them empty."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, (list, tuple)) and each for each in value):
        raise InvalidRequest(name, value, "lists of token ids, none of them empty")
    return tuple(token_ids(name, each) for each in value)


def annotated(kind: type) -> dict[str, Check]:
    """Return the checks of a dataclass by field: a check is the first annotation of an Annotated field."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


@dataclass(frozen=True)
class Fields:
    """The values of a JSON object by key; errors name a field by `prefix` and its key."""

    values: Mapping[str, Any]
    prefix: str = ""

    def take(self, key: str, check: Check) -> Any:
        """Return the checked value of `key`; a missing key is checked as None."""
        return check(self.prefix + key, self.values.get(key))

    def inside(self, key: str) -> Fields:
        """Return the fields of the object at `key`."""
        return Fields(self.take(key, mapping), f"{self.prefix}{key}.")


def read_json(path: Path, version: int, parse: Callable[[dict[str, Any]], Read]) -> Read:
    """Read a JSON file whose field `format` is `version`, and return the result of `parse` for its object.

    Raises ModelDamaged, which names the file and the invalid field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        mapping("its content", content)
        if content.get("format") != version:
            raise InvalidRequest(
                "format", content.get("format"), f"{version}, as another version of hfx has written the file"
            )
        return parse(content)
    except (OSError, ValueError) as error:
        raise ModelDamaged(f"{path} can't be read: {error}") from None
    except InvalidRequest as refusal:
        raise ModelDamaged(f"{path}: {refusal.message}") from None


# Triton's request parameters that are settings of a model: the parameters of an infer request and, at the generate
# endpoint, every JSON key that is not an input (also the keys in "parameters"). Triton passes them to each model of an
# ensemble and ignores unknown ones, so a misspelt setting would have no effect.

# The parameters that Triton reads itself. It removes them from infer requests, but not from generate requests (2.51).
TRITON_NAMES = frozenset(
    {"id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"}
)
TRITON_PREFIX = "triton_"

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
NAME_LENGTH = 60  # characters of an unknown name that an error shows: the name may be as long as the request's body


def parse_parameters(text: str) -> dict[str, Any]:
    """Return the parameters in `request.parameters()`, a JSON object, without Triton's own. Raises ValueError."""
    if text in ("", "{}"):
        return {}
    parameters = json.loads(text)
    return {
        name: parameters[name] for name in parameters if not (name in TRITON_NAMES or name.startswith(TRITON_PREFIX))
    }


def encoder_settings(text: str, task: str, inputs: Collection[str]) -> dict[str, Any]:
    """Return the settings in `request.parameters()` of an encoder: options of `task` that are among the `inputs`.

    Raises ValueError for any other parameter, and for a value of the wrong type.
    """
    parameters = parse_parameters(text)
    types = {name: kind for name, kind in TASKS[task].options.items() if kind in KINDS and name in inputs}
    for name, value in parameters.items():
        if name not in types:
            known = f"its parameters are {', '.join(types)}" if types else "it takes none"
            raise ValueError(f"{name[:NAME_LENGTH]} is no parameter of this model; {known}")
        if type(value) is not types[name] and (types[name], type(value)) != (float, int):
            raise ValueError(HAS_ANOTHER_TYPE % (name, KINDS[types[name]]))
    return parameters


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the name in `names` that `name` may have been meant to be; None if no name is similar."""
    near = [other for other in names if other.startswith(name)] or get_close_matches(name, names, 1, 0.5)
    return near[0] if near else None
