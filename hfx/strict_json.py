"""Strict reading of JSON and other files of unknown origin.

Size, depth and the length of texts are limited. An error names the file and the field, and the line if it is known.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hfx.errors import HfxError, ModelCorrupt, UsageError

MAX_TEXT = 4096  # characters of one string
MAX_DEPTH = 16  # of nested values
RESTORE = "Export the model again with --force, or restore the file as it was published."

T = TypeVar("T")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Links are not followed, and a pipe doesn't block.

    Raises ModelCorrupt.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                Node(path.as_posix(), "", None).refuse("is not a regular file")
            data = file.read(limit + 1)
    except OSError as error:
        raise ModelCorrupt(
            f"{path.as_posix()} can't be read: {error.strerror}.", "Export the model again, or correct the repository."
        ) from error
    if len(data) > limit:
        Node(path.as_posix(), "", None).refuse(f"is larger than {limit} bytes")
    return data


def read_text(path: Path, limit: int) -> str:
    """Read a regular file of at most `limit` bytes as text, which must be UTF-8. Raises ModelCorrupt."""
    try:
        return read_regular(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        Node(path.as_posix(), "", None).refuse(f"is not UTF-8 ({error.reason} at byte {error.start})")


def read_json(path: Path, limit: int) -> Node:
    """Read a JSON file of at most `limit` bytes, and return its root. Raises ModelCorrupt."""
    return parse_json(read_text(path, limit), path.as_posix())


def parse_json(text: str, origin: str) -> Node:
    """Parse a JSON text, which errors name `origin`, and return its root. Raises ModelCorrupt."""
    try:
        return Node(origin, "", json.loads(text, object_pairs_hook=without_duplicates, parse_constant=no_constant))
    except RecursionError:
        Node(origin, "", None).refuse("is nested too deeply")
    except ValueError as error:
        Node(origin, "", None).refuse(f"is not JSON: {error}")


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`, as a hook for json.loads. Raises ValueError for a name that is there twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice in one object")
    return members


def no_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, as a hook for json.loads."""
    raise ValueError(f"{text} is not a number of JSON")


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a file with its place, so that every error can name the place. All methods raise `error`.

    `origin` is the file's name in errors; `places` has the origins of values below that have another, such as a line.
    """

    origin: str
    where: str
    value: Any
    fix: str = RESTORE
    error: type[HfxError] = ModelCorrupt
    places: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, reason: str, fix: str = "") -> NoReturn:
        """Raise `error` with a message that begins with the place of this value, followed by `reason`."""
        subject = f"{self.origin}: {self.where}" if self.where else self.origin
        raise self.error(f"{subject} {reason}.", fix or self.fix)

    def child(self, name: str | int, value: Any) -> Node:
        """Return the node for a value below this one."""
        where = f"{self.where}.{name}" if self.where else str(name)
        return replace(self, origin=self.places.get(where, self.origin), where=where, value=value)

    def items(self) -> list[tuple[str, Node]]:
        """Return the members of an object with their names."""
        if not isinstance(self.value, dict):
            self.refuse("must be a mapping")
        return [(self.child(repr(k), k).text(), self.child(k, v)) for k, v in self.value.items()]

    def members(self, of: type) -> dict[str, Node]:
        """Return the members of an object, which must have exactly the fields of the dataclass `of`."""
        nodes, names = dict(self.items()), {entry.name for entry in fields(of)}
        if names != nodes.keys():
            missing, unknown = sorted(names - nodes.keys()), sorted(nodes.keys() - names)
            self.refuse(f"has no {missing[0]!r}" if missing else f"has {unknown[0]!r}, which is unknown")
        return nodes

    def known(self, *names: str) -> dict[str, Node]:
        """Return the members of an object, which may have only these `names`. Members that are null are left out."""
        nodes = dict(self.items())
        for name, node in nodes.items():
            if name not in names:
                node.refuse("is an unknown key", f"Known here: {', '.join(names)}.")
        return {name: node for name, node in nodes.items() if node.value is not None}

    def elements(self) -> list[Node]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            self.refuse("must be a list")
        return [self.child(i, v) for i, v in enumerate(self.value)]

    def text(self) -> str:
        """Return the value, which must be a printable string that isn't empty, of at most MAX_TEXT characters."""
        if not isinstance(self.value, str) or not self.value or len(self.value) > MAX_TEXT:
            self.refuse(f"must be a string of 1 to {MAX_TEXT} characters")
        if not self.value.isprintable():  # control characters, lone surrogates, text direction overrides
            self.refuse("holds characters that can't be printed")
        return self.value

    def string(self) -> str:
        """Return the value, which must be a string that isn't empty, of any characters except NUL."""
        if not isinstance(self.value, str) or not self.value or "\0" in self.value:
            self.refuse("must be a string that isn't empty")
        return self.value

    def choice(self, *values: str) -> str:
        """Return the value in lower case, which must then be one of `values`."""
        if not isinstance(self.value, str) or self.value.lower() not in values:
            self.refuse(f"must be one of {', '.join(values)}")
        return self.value.lower()

    def optional_text(self) -> str | None:
        """Return the value as `text` does, or None for null."""
        return None if self.value is None else self.text()

    def parsed(self, parse: Callable[[str], T]) -> T:
        """Return the result of `parse` for the string. `parse` raises ValueError or UsageError to refuse it."""
        try:
            return parse(self.text())
        except (ValueError, UsageError) as error:
            self.refuse(f"can't be taken: {str(error.args[0]).rstrip('.')}")

    def matching(self, pattern: str, meaning: str) -> str:
        """Return the value, which must be a string that matches an ASCII pattern as a whole."""
        if not re.fullmatch(pattern, self.text(), re.ASCII):
            self.refuse(f"must be {meaning}")
        return self.text()

    def integer(self, least: int, most: int = 2**63 - 1) -> int:
        """Return the value, which must be an integer from `least` to `most`, and not a boolean."""
        if type(self.value) is not int or not least <= self.value <= most:
            self.refuse(f"must be an integer of at least {least}")
        return self.value

    def json(self, depth: int = 0) -> Json:
        """Return any value, which may have only finite numbers and printable strings, at most MAX_DEPTH deep."""
        if depth > MAX_DEPTH:
            self.refuse(f"is nested deeper than {MAX_DEPTH}")
        if isinstance(self.value, dict):
            return {name: node.json(depth + 1) for name, node in self.items()}
        if isinstance(self.value, list):
            return [node.json(depth + 1) for node in self.elements()]
        if isinstance(self.value, str) and self.value:
            return self.text()
        if isinstance(self.value, float) and not math.isfinite(self.value):
            self.refuse("is too large a number")
        return self.value  # type: ignore[no-any-return]
