"""A cell of a data file as the values of a tensor: texts, lists of texts, and the settings that a request may have.

Whether the model takes them is told before they are sent, by its own metadata; this table is for cells that are text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hfx import names
from hfx.errors import UsageError

Scalar = str | int | float | bool
Kind = Literal["text", "list", "whole", "number", "flag"]

KINDS: Mapping[str, Kind] = {
    **dict.fromkeys((names.TEXT_INPUT, names.QUESTION, names.CONTEXT), "text"),
    **dict.fromkeys((names.EARLY_STOPPING, names.LONG, names.MERGE), "text"),
    **dict.fromkeys((names.SOURCE_LANG, names.TARGET_LANG), "text"),
    **dict.fromkeys((names.CANDIDATE_LABELS, names.STOP_WORDS), "list"),
    **dict.fromkeys((names.MAX_TOKENS, names.MIN_TOKENS, names.NUM_BEAMS, names.BEAM_WIDTH, names.TOP_K), "whole"),
    **dict.fromkeys((names.NUM_RETURN_SEQUENCES, names.SEED, names.NO_REPEAT_NGRAM_SIZE), "whole"),
    **dict.fromkeys((names.OVERLAP, names.TIMEOUT_MS), "whole"),
    **dict.fromkeys((names.TEMPERATURE, names.TOP_P, names.MIN_P), "number"),
    **dict.fromkeys((names.REPETITION_PENALTY, names.LENGTH_PENALTY), "number"),
    **dict.fromkeys((names.DO_SAMPLE, names.MULTI_LABEL, names.RETURN_LOG_PROBS), "flag"),
}
NEEDED = frozenset({names.TEXT_INPUT, names.QUESTION, names.CONTEXT, names.CANDIDATE_LABELS})
SETTINGS = tuple(name for name in KINDS if name not in NEEDED)
FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
DESCRIPTIONS: Mapping[Kind, str] = {
    "text": "a text",
    "list": "a list of texts",
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
}


def values_of(tensor: str, value: Any, textual: bool) -> tuple[Scalar, ...]:
    """The values of TENSOR that a cell, or an option, gives; TEXTUAL cells are read, others are of their type already.

    Raises UsageError, which says neither file nor line.
    """
    kind = KINDS.get(tensor, "text")
    read = _read(kind, value) if textual and isinstance(value, str) else value
    if tensor == names.EARLY_STOPPING and isinstance(read, bool):
        read = str(read).lower()  # a text, as it has a third value
    listed: Sequence[Any] = read if isinstance(read, list | tuple) else (read,)
    if not listed or (kind != "list" and len(listed) != 1) or not all(_is(kind, each) for each in listed):
        raise UsageError(f"{tensor} is {_shown(value)}.", f"Give {DESCRIPTIONS[kind]}.")
    return tuple(listed)


def _read(kind: Kind, text: str) -> Any:
    bare = text.strip()
    try:
        if kind == "whole":
            return int(bare)
        if kind == "number":
            return float(bare)
        if kind == "list":
            return json.loads(bare) if bare.startswith("[") else _split(bare)
    except ValueError:
        return None
    return FLAGS.get(bare.lower()) if kind == "flag" else text


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _is(kind: Kind, value: Any) -> bool:
    if kind == "whole":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, bool if kind == "flag" else str)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
