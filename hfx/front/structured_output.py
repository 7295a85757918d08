"""Structured output in other servers' APIs, read into one of the settings json_schema, regex and choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hfx.front.refusals import Refusal, dumped, shown
from hfx.front.schemas import body, schema

ANY_OBJECT = {"type": "object"}  # what OpenAI calls JSON mode

Structure = dict[str, Any]  # the setting for a structured output, and its value


def openai_structure(fields: Mapping[str, Any]) -> tuple[str, Structure]:
    """Return the field and the setting for the structured output that a request to OpenAI's API specifies.

    Both are empty if it has none. vLLM's fields are read, too. Raises Refusal (400) for a structured output that is not
    supported, and if there are several.
    """
    read = {name: reader(name, fields[name]) for name, reader in OPENAI.items() if fields.get(name) is not None}
    structures = {name: structure for name, structure in read.items() if structure}
    if len(structures) > 1:
        names = " and ".join(structures)
        raise Refusal(400, f"{names} are two structured outputs. Send one.", param=[*structures][1])
    return next(iter(structures.items()), ("", {}))


def huggingface_structure(grammar: Any) -> Structure:
    """Return the setting for the structured output in `grammar` of text-generation-inference. Raises Refusal (400)."""
    name = "grammar"
    if grammar is None:
        return {}
    kind, value = _member(name, grammar, "type"), _member(name, grammar, "value")
    if kind == "json":
        return {"json_schema": _schema(name, value)}
    if kind == "json_schema":
        return {"json_schema": _schema(name, _member(name, value, "schema"))}
    if kind == "regex":
        return {"regex": value}
    raise Refusal(400, f"grammar has the type {shown(kind)}. Send json, json_schema or regex.", param=name)


def _response_format(name: str, value: Any) -> Structure:
    kind = _member(name, value, "type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": _schema(name, ANY_OBJECT)}
    if kind == "json_schema":
        return {"json_schema": _schema(name, _member(name, _member(name, value, "json_schema"), "schema"))}
    raise Refusal(400, f"{name} has the type {shown(kind)}. Send text, json_object or json_schema.", param=name)


def _structured_outputs(name: str, value: Any) -> Structure:
    """Read vLLM's object, which must have one kind of structured output."""
    if not isinstance(value, dict):
        raise Refusal(400, f"{name} is {shown(value)}. Send an object.", param=name)
    given = {kind: each for kind, each in value.items() if each is not None and each is not False}
    unknown = next((kind for kind in given if kind not in VLLM), None)
    if unknown is not None or len(given) != 1:
        what = "several structured outputs" if unknown is None and given else shown(unknown) if given else "none"
        raise Refusal(400, f"{name} has {what}. Send one of {', '.join(VLLM)}.", param=name)
    ((kind, structure),) = given.items()
    return VLLM[kind](name, structure)


def _schema(name: str, value: Any) -> str:
    """Return a schema as JSON text. Some clients send it as text already."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        raise Refusal(400, f"The schema in {name} is {shown(value)}. Send an object.", param=name)
    return dumped(value).decode()


def _member(name: str, value: Any, key: str) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise Refusal(400, f"{name} has {shown(value)} where an object with {key} belongs. Send one.", param=name)
    return value[key]


Reader = Callable[[str, Any], Structure]
VLLM: Mapping[str, Reader] = {
    "json": lambda name, value: {"json_schema": _schema(name, value)},
    "regex": lambda name, value: {"regex": value},
    "choice": lambda name, value: {"choices": value},
    "json_object": lambda name, value: {"json_schema": _schema(name, ANY_OBJECT)},
}
OPENAI: Mapping[str, Reader] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": VLLM["json"],
    "guided_regex": VLLM["regex"],
    "guided_choice": VLLM["choice"],
}
SCHEMA = schema(dict[str, Any] | str)
OPENAI_SCHEMAS: Mapping[str, Any] = {
    "response_format": body("type", type=str, json_schema=body("schema", name=str, schema=dict)),
    "structured_outputs": body("", json=SCHEMA, regex=str, choice=list[str]),
    "guided_json": SCHEMA,
    "guided_regex": str,
    "guided_choice": list[str],
}
GRAMMAR = body("type value", type=str, value=SCHEMA)
