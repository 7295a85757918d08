"""Reading values of input tensors from texts, such as the cells of a CSV file, and from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hfx import names
from hfx.errors import UsageError
from hfx.python_backends.engine import generation_settings

Scalar = str | int | float | bool
Kind = Literal["text", "list", "integer", "number", "flag"]

DTYPES: Mapping[str, Kind] = {"INT32": "integer", "UINT64": "integer", "FP32": "number", "BOOL": "flag"}
KINDS: Mapping[str, Kind] = {
    **{
        name: "list" if name in generation_settings.LISTS else DTYPES.get(setting.dtype, "text")
        for name, setting in generation_settings.BY_ALL_NAMES.items()
    },
    names.CANDIDATE_LABELS: "list", names.TARGETS: "list",
    names.NUM_RETURN_SEQUENCES: "integer", names.TIMEOUT_MS: "integer", names.THRESHOLD: "number",
    names.MULTI_LABEL: "flag", names.RAW_SCORES: "flag", names.APPLY_SOFTMAX: "flag",
    names.PROMPT_NAME: "text", names.DIMENSIONS: "integer", names.MAX_ANSWER_LEN: "integer",
    names.DOC_STRIDE: "integer", names.STRIDE: "integer", names.HANDLE_IMPOSSIBLE_ANSWER: "flag", names.NESTED: "flag",
}  # fmt: skip
FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def _read_list(text: str) -> Any:
    return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]


# Kind -> its description in errors, the types of its values, and the function that parses a stripped text.
TYPES: Mapping[Kind, tuple[str, tuple[type, ...], Callable[[str], Any]]] = {
    "text": ("a text", (str,), str),
    "list": ("a list of texts", (str,), _read_list),
    "integer": ("a whole number", (int,), int),
    "number": ("a number", (int, float), float),
    "flag": ("true or false", (bool,), lambda text: FLAGS.get(text.lower())),
}


def values_of(tensor: str, value: Any, textual: bool) -> tuple[Scalar, ...]:
    """Return the checked values of `tensor` from a cell or an option. Raises UsageError.

    With `textual`, a str is parsed according to the tensor's type.
    """
    kind = KINDS.get(tensor, "text")
    read = _read(kind, value) if textual and isinstance(value, str) else value
    read = generation_settings.to_text(tensor, read)
    listed: Sequence[Any] = read if isinstance(read, list | tuple) else (read,)
    if not listed or (kind != "list" and len(listed) != 1) or not all(_is(kind, each) for each in listed):
        text = repr(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise UsageError(f"{tensor} is {shown}.", f"Give {TYPES[kind][0]}.")
    return tuple(listed)


def _read(kind: Kind, text: str) -> Any:
    try:
        return text if kind == "text" else TYPES[kind][2](text.strip())
    except (ValueError, RecursionError):
        return None


def _is(kind: Kind, value: Any) -> bool:
    if isinstance(value, bool) != (kind == "flag"):  # a bool is an int, too
        return False
    return isinstance(value, TYPES[kind][1]) and not (isinstance(value, float) and not math.isfinite(value))
