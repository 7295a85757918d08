"""JSON Schemas of requests' bodies, for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias, UnionType
from typing import Any

from hfx.python_backends.engine.generation_settings import BY_ALL_NAMES, Setting

Schema = Mapping[str, Any]
TYPES: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}
SETTING_TYPES = {"INT32": int, "UINT64": int, "FP32": float, "BOOL": bool}


def schema(kind: Any) -> Schema:
    """Return the JSON Schema of a type such as `str | list[str]`. A schema is returned as it is."""
    if isinstance(kind, UnionType):
        return either(*kind.__args__)
    if isinstance(kind, GenericAlias):
        return array(kind.__args__[0]) if kind.__origin__ is list else TYPES[kind.__origin__]
    return kind if isinstance(kind, Mapping) else TYPES[kind]


def array(items: Any) -> Schema:
    """Return the schema of a list of `items`, which are a type or a schema."""
    return {"type": "array", "items": schema(items)}


def either(*kinds: Any) -> Schema:
    """Return the schema of a value that fits one of `kinds`, which are types or schemas."""
    return {"anyOf": [schema(kind) for kind in kinds]}


def body(required: str, /, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object. `required` names the required properties, separated by spaces.

    `properties` are types or schemas.
    """
    fields = {name: schema(kind) for name, kind in properties.items()}
    return {"type": "object", "required": required.split(), "properties": fields}


def _setting(row: Setting) -> Schema:
    if row.is_keyed:
        return schema(dict[str, Any] | list[str])
    if row.is_list:
        return either(row.item, array(row.item))
    return schema(SETTING_TYPES.get(row.dtype, Any))


# The settings of generators, by each of their names.
GENERATION: Mapping[str, Schema] = {
    name: {**_setting(row), "description": f"{row.text}. It must be {row.allowed}."}
    for name, row in BY_ALL_NAMES.items()
    if row.dtype
}
TENSOR = body("name shape datatype", name=str, shape=list[int], datatype=str, data=list)
INFER = body("inputs", id=str, inputs=array(TENSOR), outputs=array(body("name", name=str)), parameters=dict)
GENERATE = body("text_input", text_input=str, id=str, **GENERATION)
TRITON_BODIES = {"infer": INFER, "generate": GENERATE, "generate_stream": GENERATE, "index": body("", ready=bool)}
