"""JSON Schemas of requests' bodies, for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx.python_backends.engine.generation_settings import BY_ALL_NAMES, Setting

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TYPES = {"INT32": WHOLE, "UINT64": WHOLE, "FP32": NUMBER, "BOOL": BOOLEAN}


def array(items: Schema) -> Schema:
    """Return the schema of a list of `items`."""
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    """Return the schema of a value that fits one of `schemas`."""
    return {"anyOf": list(schemas)}


def body(required: str, /, **properties: Schema) -> dict[str, Any]:
    """Return the schema of an object with `properties`. `required` names the required ones, separated by spaces."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _lists(setting: Setting) -> Schema:
    return either(OBJECT, array(TEXT)) if setting.is_keyed else TEXTS


TEXTS = either(TEXT, array(TEXT))
# The settings of generators, by each of their names.
GENERATION: Mapping[str, Schema] = {
    name: {
        **(_lists(row) if row.is_list else TYPES.get(row.dtype, {})),
        "description": f"{row.text}. It must be {row.allowed}.",
    }
    for name, row in BY_ALL_NAMES.items()
    if row.dtype
}
TENSOR = body("name shape datatype", name=TEXT, shape=array(WHOLE), datatype=TEXT, data={"type": "array"})
INFER = body("inputs", id=TEXT, inputs=array(TENSOR), outputs=array(body("name", name=TEXT)), parameters=OBJECT)
GENERATE = body("text_input", text_input=TEXT, id=TEXT, **GENERATION)
TRITON_BODIES = {"infer": INFER, "generate": GENERATE, "generate_stream": GENERATE, "index": body("", ready=BOOLEAN)}
