"""The record of the public surface, docs/surface.txt: a line for each item that docs/stability.md promises.

A new item is recorded. An item that is gone, or that changed in a way that breaks its users, stays in the record as it
was, and a test fails, until CHANGELOG.md names the item.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, get_args, get_overloads, get_type_hints

from typer.main import get_command

from docs.generate import environment, tables
from hfx import names

ROOT = Path(__file__).resolve().parents[2]
RECORD, CHANGELOG = ROOT / "docs/surface.txt", ROOT / "CHANGELOG.md"
NOTE = "# Made by `make docs`: the items that docs/stability.md promises, as the last version has them.\n"
SECTION = "### Incompatible changes"
REQUIRED, SEVERAL = "required", "several"
SHARED = ("json", "debug")  # options of all commands
# What is documented beside the names of hfx.client and the errors.
FUNCTIONS = (
    "hfx.batch.spark.make_predict_fn",
    "hfx.batch.spark.score",
    "hfx.batch.spark.udf",
    "hfx.client.served.served_model",
    "hfx.local.models.local_model",
)

Surface = Mapping[str, str]  # name of an item -> its details, in words; both may have any characters but ": "
Items = Iterator[tuple[str, str]]
Schema = Mapping[str, Any]
NO_TYPES: Mapping[str, Any] = MappingProxyType({})


def record() -> str:
    """Return the text of docs/surface.txt."""
    recorded = parsed(RECORD.read_text(encoding="utf-8"))
    merged = updated(recorded, surface(), CHANGELOG.read_text(encoding="utf-8"))
    return NOTE + "".join(f"{name}: {details}\n" if details else f"{name}\n" for name, details in merged.items())


def parsed(text: str) -> Surface:
    """Return the items in the text of a record."""
    lines = (line.partition(": ") for line in text.splitlines() if not line.startswith("#"))
    return {name: details for name, _, details in lines}


def updated(recorded: Surface, found: Surface, changelog: str) -> Surface:
    """Return `found`, with the items of `unnamed` as they are in `recorded`."""
    broken = unnamed(recorded, found, changelog)
    kept = {name: details for name, details in found.items() if name not in broken}
    kept |= {name: recorded[name] for name in broken if name in recorded}
    return dict(sorted(kept.items()))


def unnamed(recorded: Surface, found: Surface, changelog: str) -> dict[str, str]:
    """Return name -> change for each incompatible change that the newest version in `changelog` does not name.

    A removed command also names its options: an item stands for its parts if it has changed itself.
    """
    broken = dict(_incompatible(recorded, found))
    newest = changelog.partition("\n## ")[2].partition("\n## ")[0]
    section = newest.partition(SECTION)[2].partition("\n### ")[0]
    named = broken.keys() & re.findall("`([^`]+)`", section)
    return {name: change for name, change in broken.items() if named.isdisjoint((name, *parents(name)))}


def _incompatible(recorded: Surface, found: Surface) -> Items:
    for name, details in recorded.items():
        if name not in found:
            yield name, "is gone"
        elif not compatible(details, found[name]):
            yield name, f'was "{details}" and is "{found[name]}"'
    for name in found.keys() - recorded.keys():
        if REQUIRED in found[name].split() and not recorded.keys().isdisjoint(parents(name)):
            yield name, "is new and required"


def compatible(old: str, new: str) -> bool:
    """Whether an item may change so: what was required gets a default, and alternatives (`fp32|int8`) get another."""
    before, after = old.split(), new.split()
    if REQUIRED in before and REQUIRED not in after:
        before.remove(REQUIRED)
        after = [word for word in after if not word.startswith("=")]
    return len(before) == len(after) and all(
        {*one.split("|")} <= {*other.split("|")} for one, other in zip(before, after, strict=True)
    )


def parents(name: str) -> Iterator[str]:
    """Yield the names of the items that the item `name` is a part of."""
    while whole := re.match(r"(.+)[ .(]", name):
        yield (name := whole[1])


# The items


def surface() -> Surface:
    """Return the items of this checkout."""
    return dict(chain(_python(), _commands(), _http(), _manifest(), _models()))


def _words(*parts: Any) -> str:
    return " ".join(str(part).replace(" | ", "|") for part in parts if part)


def _python() -> Items:
    import hfx.client

    for name in hfx.client.__all__:
        yield f"hfx.client.{name}", ""
        if name != "AsyncClient":  # its methods are those of Client, which is generated from it
            yield from _class(f"hfx.client.{name}", getattr(hfx.client, name))
    for error in tables.error_classes():
        yield f"hfx.errors.{error.__name__}", f"{error.__mro__[1].__name__} exit {error.exit_code}"
    for path in FUNCTIONS:
        module, _, function = path.rpartition(".")
        yield from _function(path, getattr(importlib.import_module(module), function))


def _class(path: str, cls: type) -> Items:
    own = [base for base in cls.__mro__ if base.__module__.startswith("hfx.")]
    if is_dataclass(cls):
        yield from _parameters(path, cls, {each.name: each.type for each in fields(cls)})
    elif any("__init__" in vars(base) for base in own if base.__name__[0] != "_" and Protocol not in base.__bases__):
        yield from _parameters(path, cls)
    members = {name: member for base in reversed(own) for name, member in vars(base).items()}
    for name, member in members.items():
        if isinstance(member, property) and not name.startswith("_"):
            yield f"{path}.{name}", inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
        elif inspect.isfunction(member) and not name.startswith("_"):
            yield from _function(f"{path}.{name}", member)


def _function(path: str, function: Any) -> Items:
    forms = get_overloads(function) or [function]
    returned = dict.fromkeys(str(inspect.signature(each).return_annotation) for each in forms)
    yield path, f"{'await ' if inspect.iscoroutinefunction(function) else ''}-> {' or '.join(returned)}"
    yield from _parameters(path, function)


def _parameters(path: str, function: Any, types: Mapping[str, Any] = NO_TYPES) -> Items:
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    for position, each in enumerate(parameters, 1):
        place = "keyword" if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) else f"position {position}"
        is_several = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        default = REQUIRED if each.default is each.empty else f"={each.default!r}"
        yield f"{path}({each.name})", _words(place, types.get(each.name), SEVERAL if is_several else default)


def _commands() -> Items:
    from hfx.cli import app
    from hfx.cli.commands import COMMANDS

    program: Any = get_command(app)
    yield from _options("hfx", program.params)
    for name, command in environment.commands("", COMMANDS):
        yield f"hfx {name}", ""
        if not name.startswith(environment.AZURE):
            yield from _options(f"hfx {name}", [each for each in command.params if each.name not in SHARED])
    for code in tables.EXIT_CODES:
        yield f"exit code {code}", ""
    others = [variable for variable, _, meaning in environment.OTHERS if not meaning.startswith("internal")]
    for variable in (*others, *(variable for variable, *_ in environment.option_variables())):
        yield variable, ""


def _options(path: str, parameters: Iterable[Any]) -> Items:
    position = 0
    for each in parameters:
        is_several = each.nargs == -1 or getattr(each, "multiple", False)
        default = "" if each.default in (None, "") or each.default is False else f"={each.default}"
        details = _words(each.metavar or "flag", is_several and SEVERAL, REQUIRED if each.required else default)
        if each.param_type_name == "argument":
            yield f"{path} argument {(position := position + 1)}", details
        else:
            yield from ((f"{path} {name}", details) for name in (*each.opts, *each.secondary_opts))


def _http() -> Items:
    from hfx.front.batches import BATCH_PATHS
    from hfx.front.dialect_server import description
    from hfx.front.dialects import DIALECTS
    from hfx.front.schemas import GENERATION

    for name, schema in GENERATION.items():
        yield f"generation setting {name}", _type(schema)
    paths = json.loads(description(DIALECTS, BATCH_PATHS))["paths"]
    for path, operations in paths.items():
        same = paths.get(path.removeprefix("/models/{model}") or "/", {}) if path.startswith("/models/") else {}
        for method, operation in operations.items():
            yield f"{method.upper()} {path}", ""
            body = operation.get("requestBody")
            if body and body != same.get(method, {}).get("requestBody"):
                yield from _fields(
                    f"{method.upper()} {path} ", body["content"]["application/json"]["schema"], GENERATION
                )


def _fields(prefix: str, schema: Schema, settings: Mapping[str, Schema]) -> Items:
    """Yield the fields of an object; one line stands for all generation settings."""
    alternatives = schema.get("anyOf", [schema])
    for properties in (each.get("properties", {}) for each in alternatives):
        has_all = settings.keys() <= properties.keys()
        if has_all:
            yield f"{prefix}generation settings", ""
        for name, each in properties.items():
            if not has_all or each != settings.get(name):
                is_required = all(name in one.get("required", ()) for one in alternatives)
                yield f"{prefix}{name}", _words(_type(each), REQUIRED if is_required else "")
                yield from _fields(f"{prefix}{name}.", each.get("items", each), settings)


def _type(schema: Schema) -> str:
    if "anyOf" in schema:
        return "|".join(map(_type, schema["anyOf"]))
    if "items" in schema:
        return f"[{_type(schema['items'])}]"
    return "|".join(schema.get("enum", [schema.get("const", schema.get("type", "any"))]))


def _manifest() -> Items:
    from hfx.manifest import Manifest

    return _members("hfx.json ", Manifest)


def _members(prefix: str, cls: Any) -> Items:
    hints = get_type_hints(cls)
    for each in fields(cls):
        is_optional = each.default is not MISSING or each.default_factory is not MISSING
        yield f"{prefix}{each.name}", _words(each.type, "" if is_optional else REQUIRED)
        for kind in (hints[each.name], *get_args(hints[each.name])):
            if is_dataclass(kind):
                yield from _members(f"{prefix}{each.name}.", kind)


def _models() -> Items:
    for suffix in ("", *names.MEMBER_SUFFIXES):
        yield f"folder NAME{suffix}", ""
    for task in names.Task:
        yield f"task {task}", ""
    for title, rows in tables.tensors().items():
        for name, direction, *details in rows:
            required = REQUIRED if direction == "input" else ""
            kind = title.partition(":")[0].lower()
            yield f"tensor {kind} {name}", _words(direction.split()[-1], *details, required)
    for name, kind, labels, _ in tables.metrics():
        yield name, _words(kind, "|".join(labels))
