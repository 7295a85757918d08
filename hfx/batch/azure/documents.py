"""Strict reading of YAML files of unknown origin. Each value records its file and line, which errors name.

Aliases are refused, because a few bytes of aliases can expand to gigabytes. Duplicate keys are refused, too. Size and
depth are limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from hfx.batch.folder import storage, write_file
from hfx.errors import UsageError
from hfx.strict_json import Json, Node, read_text

MAX_BYTES = 256 << 10
MAX_DEPTH = 16
PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def read_document(path: Path) -> Node:
    """Return the mapping in a YAML file. Raises UsageError."""
    try:
        return parse_document(read_text(path.resolve(), MAX_BYTES), str(path))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(getattr(error, "message", str(error)), "Give a YAML file as `az ml` takes it.") from error


def parse_document(text: str, origin: str) -> Node:
    """Return the mapping in a YAML text. `origin` names the text in messages. Raises UsageError."""
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):  # checked before composing, which takes minutes for a deep text
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                _refuse(origin, event, f"is nested deeper than {MAX_DEPTH}")
            if isinstance(event, yaml.AliasEvent):
                _refuse(origin, event, "aliases are refused", "Write the value out.")
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{origin} can't be read as YAML: {reason}.", "Correct the file.") from error
    places: dict[str, str] = {}
    value = {} if root is None else _value(origin, "", root, places)
    document = Node(places.get("", origin), "", value, "", UsageError, places)
    document.items()
    return document


def _value(origin: str, path: str, node: yaml.Node, places: dict[str, str]) -> Json:
    """Return the value of `node`, and add the file and line of each path in it to `places`."""
    places.setdefault(path, f"{origin}, line {node.start_mark.line + 1}")
    if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
        _refuse(origin, node, f"the tag {node.tag} is refused", "Leave it out.")
    if isinstance(node, yaml.MappingNode):
        return _members(origin, path, node, places)
    if isinstance(node, yaml.SequenceNode):
        return [_value(origin, f"{path}.{i}", n, places) for i, n in enumerate(node.value)]
    return _scalar(origin, node)


def _members(origin: str, path: str, node: yaml.MappingNode, places: dict[str, str]) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or not key.isprintable():
            _refuse(origin, key_node, "a key must be printable text")
        if key in members:
            _refuse(origin, key_node, f"{key!r} stands twice in one mapping", "Keep one of them.")
        where = f"{path}.{key}" if path else key
        places[where] = f"{origin}, line {key_node.start_mark.line + 1}"
        members[key] = _value(origin, where, value_node, places)
    return members


def _scalar(origin: str, node: yaml.Node) -> Json:
    try:
        value = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, KeyError) as error:
        _refuse(origin, node, " ".join(str(error).split()))
    return value if isinstance(value, bool | int | float | str | None) else str(node.value)  # dates remain text


def _refuse(origin: str, node: Any, reason: str, fix: str = "") -> NoReturn:
    raise UsageError(f"{origin}, line {node.start_mark.line + 1}: {reason}.", fix)


def with_settings(document: Node, settings: Sequence[str]) -> Node:
    """Return the document changed by `settings`, each KEY.KEY=VALUE as for az's --set. Raises UsageError."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.split(".")
        if not equals or not all(keys):
            raise UsageError(f"--set {setting} has no form KEY=VALUE.", "E.g. --set settings.mini_batch_size=4.")
        value = parse_document(f"value: {text}", f"--set {setting}").value.get("value")
        places = {**document.places, path: f"--set {setting}"}
        document = replace(document, value=_with(document, keys, value), places=places)
    return document


def _with(node: Node, keys: Sequence[str], value: Json) -> Json:
    """Return the value of `node`, with `value` at the path `keys`."""
    if not keys:
        return value
    members = {} if node.value is None else {name: member.value for name, member in node.items()}
    return {**members, keys[0]: _with(node.child(keys[0], members.get(keys[0])), keys[1:], value)}


def dump(document: Mapping[str, Any]) -> str:
    """Return `document` as YAML text, with its keys in their order."""
    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document atomically. Raises StorageFull and JobError."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: file.write(dump(document).encode("utf-8", "surrogateescape")))
