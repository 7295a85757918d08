"""Rewrites Triton's errors about tensors that do not fit a model, to say what is wrong and what to send.

Triton has one code for all of these errors, so they are recognized by the wording of 2.51. Other messages stay as they
are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

from hfx.errors import HfxError
from hfx.front.catalog import ServedModel
from hfx.front.refusals import Refusal, dumped

LONGEST = 4096  # bytes; longer errors are not rewritten
REQUEST_ID = re.compile(r"^\[request id: [^\]]*\] ")
SHAPE = re.compile(
    r"unexpected shape for input '(?P<name>[^']*)' for model '(?P<model>[^']*)'\. "
    r"Expected \[(?P<expected>[-0-9,]*)\], got (?P<got>\[[0-9,]*\])\."
)
UNKNOWN = re.compile(r"unexpected inference (?P<kind>input|output) '(?P<name>[^']*)' for model '(?P<model>[^']*)'")
SIZES = ("n", "m", "k")  # the names for sizes that may have any value

Models = Callable[[str], Awaitable[ServedModel]]


async def reworded(body: bytes, models: Models) -> bytes:
    """Return the body of Triton's error, rewritten if it is recognized. `models` returns a model by its name."""
    try:
        message = json.loads(body)["error"] if len(body) <= LONGEST else None
    except (ValueError, LookupError, TypeError):
        return body
    if not isinstance(message, str):
        return body
    plain = REQUEST_ID.sub("", message)
    if found := SHAPE.match(plain):
        free = iter(SIZES)
        sizes = ", ".join(next(free, "?") if size == "-1" else size for size in found["expected"].split(","))
        plain = f"The input {found['name']!r} has the shape {found['got']}. Send the shape [{sizes}]."
    elif found := UNKNOWN.match(plain):
        known = await _known(found["model"], found["kind"], models)
        plain = f"The model {found['model']!r} has no {found['kind']} {found['name']!r}.{known}"
    return body if plain == message else dumped({"error": plain})


async def _known(name: str, kind: str, models: Models) -> str:
    try:
        metadata = (await models(name)).metadata
    except (HfxError, Refusal):
        return ""
    tensors = metadata.inputs if kind == "input" else metadata.outputs
    return f" Its {kind}s are {', '.join(f'{tensor.name} ({tensor.datatype})' for tensor in tensors)}."
