"""YAML files of unknown origin, read strictly: each value knows its file and line, so that a refusal can name them.

Anchors are refused (a few bytes of them stand for gigabytes), keys that stand twice too; size and depth are limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from hfx.batch.folder import storage, write_file
from hfx.errors import UsageError
from hfx.strict_json import read_text

MAX_BYTES = 256 << 10
MAX_DEPTH = 16
PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True)
class Value:
    """A value of a document; `origin` is a file with the line, or an option. All methods raise UsageError."""

    origin: str
    path: str
    content: Any  # a dict or list of Values, or a plain value

    def refuse(self, reason: str, fix: str = "") -> NoReturn:
        """Raise UsageError: the value `reason`."""
        raise UsageError(f"{self.origin}: {self.path or 'the document'} {reason}.", fix)

    def members(self) -> dict[str, Value]:
        """The members of a mapping."""
        if not isinstance(self.content, dict):
            self.refuse("must be a mapping")
        return self.content

    def known(self, *keys: str) -> dict[str, Value]:
        """The members of a mapping that has no other keys; those that are null are left out."""
        for key, value in self.members().items():
            if key not in keys:
                value.refuse("is an unknown key", f"Known here: {', '.join(keys)}.")
        return {key: value for key, value in self.content.items() if value.content is not None}

    def text(self) -> str:
        """A string that isn't empty."""
        if not isinstance(self.content, str) or not self.content or "\0" in self.content:
            self.refuse("must be a string that isn't empty")
        return self.content

    def integer(self, least: int) -> int:
        """An integer from `least` to 2**31 - 1."""
        if type(self.content) is not int or not least <= self.content < 2**31:
            self.refuse(f"must be an integer of at least {least}")
        return self.content

    def choice(self, *values: str) -> str:
        """One of `values`, in any case."""
        if not isinstance(self.content, str) or self.content.lower() not in values:
            self.refuse(f"must be one of {', '.join(values)}")
        return self.content.lower()

    def plain(self) -> Plain:
        """The value without its origin."""
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        if isinstance(self.content, list):
            return [value.plain() for value in self.content]
        plain: Plain = self.content
        return plain


def read_document(path: Path) -> Value:
    """The mapping that a YAML file holds. Raises UsageError."""
    try:
        return parse_document(read_text(path.resolve(), MAX_BYTES), str(path))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(getattr(error, "message", str(error)), "Give a YAML file as `az ml` takes it.") from error


def parse_document(text: str, origin: str) -> Value:
    """The mapping of a YAML text; `origin` is its name in messages. Raises UsageError."""
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):  # lazily: a deep one would take minutes as a whole
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                _refuse(origin, event, f"is nested deeper than {MAX_DEPTH}")
            if isinstance(event, yaml.AliasEvent):
                _refuse(origin, event, "aliases are refused", "Write the value out.")
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{origin} can't be read as YAML: {reason}.", "Correct the file.") from error
    value = Value(origin, "", {}) if root is None else _value(origin, "", root)
    value.members()
    return value


def _value(origin: str, path: str, node: yaml.Node) -> Value:
    here = f"{origin}, line {node.start_mark.line + 1}"
    if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
        _refuse(origin, node, f"the tag {node.tag} is refused", "Leave it out.")
    if isinstance(node, yaml.MappingNode):
        return Value(here, path, _members(origin, path, node))
    if isinstance(node, yaml.SequenceNode):
        return Value(here, path, [_value(origin, f"{path}[{i}]", n) for i, n in enumerate(node.value)])
    return Value(here, path, _scalar(origin, node))


def _members(origin: str, path: str, node: yaml.MappingNode) -> dict[str, Value]:
    members: dict[str, Value] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or not key.isprintable():
            _refuse(origin, key_node, "a key must be printable text")
        if key in members:
            _refuse(origin, key_node, f"{key!r} stands twice in one mapping", "Keep one of them.")
        value = _value(origin, f"{path}.{key}" if path else key, value_node)
        members[key] = Value(f"{origin}, line {key_node.start_mark.line + 1}", value.path, value.content)
    return members


def _scalar(origin: str, node: yaml.Node) -> Plain:
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, KeyError) as error:
        _refuse(origin, node, " ".join(str(error).split()))
    return value if isinstance(value, bool | int | float | str | None) else str(node.value)  # a date is text


def _refuse(origin: str, node: Any, reason: str, fix: str = "") -> NoReturn:
    raise UsageError(f"{origin}, line {node.start_mark.line + 1}: {reason}.", fix)


def with_settings(document: Value, settings: Sequence[str]) -> Value:
    """The document with each `key.key=value` of `settings` (az's --set) put in. Raises UsageError."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise UsageError(f"--set {setting} has no form KEY=VALUE.", "E.g. --set settings.mini_batch_size=4.")
        values = parse_document(f"value: {text}", f"--set {setting}").known("value")
        content = values["value"].content if values else None
        document = _with(document, keys, Value(f"--set {setting}", path, content))
    return document


def _with(at: Value, keys: Sequence[str], value: Value) -> Value:
    """The mapping `at` with `value` below `keys`."""
    if not keys:
        return value
    members = {} if at.content is None else at.members()
    below = members.get(keys[0], Value(value.origin, value.path, None))
    return Value(at.origin, at.path, {**members, keys[0]: _with(below, keys[1:], value)})


def dump(document: Mapping[str, Any]) -> str:
    """The document as YAML text, in the order of its keys."""
    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document in one step. Raises StorageFull and JobError."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: file.write(dump(document).encode("utf-8", "surrogateescape")))
